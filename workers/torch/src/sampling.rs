//! Draws tokens. The random number of a draw follows from the request's seed and the token's
//! position alone. So a result depends neither on the other requests of the batch nor on restarts
//! of the worker.

use tch::{Kind, Tensor};

mod cut;

use cut::unlikely;

/// Tokens of a vocabulary that are added up together before one of them is looked for.
const CHUNK: i64 = 256;
/// The largest share of a sum that is still below it after rounding.
const BELOW_ONE: f64 = 1.0 - f64::EPSILON;

/// How one row is drawn.
#[derive(Debug, Clone, Copy)]
pub struct Draw {
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f64,
    /// The request's seed.
    pub seed: u64,
    /// The token's place in its sequence.
    pub position: u64,
    /// Only tokens below this are drawn; `None` for the whole vocabulary.
    pub below: Option<u32>,
    /// Of the likeliest tokens only those that add up to this; 1 for all.
    pub top_p: f64,
    /// Only so many of the likeliest; 0 for all.
    pub top_k: u32,
    /// Only those at least this share as likely as the likeliest; 0 for all.
    pub min_p: f64,
}

impl Draw {
    /// From the whole distribution at `temperature`.
    #[must_use]
    pub const fn at(temperature: f64, seed: u64, position: u64) -> Self {
        Self { temperature, seed, position, below: None, top_p: 1.0, top_k: 0, min_p: 0.0 }
    }

    /// Whether unlikely tokens are cut off.
    #[must_use]
    pub const fn cuts(&self) -> bool {
        self.temperature > 0.0 && (self.top_p < 1.0 || self.top_k > 0 || self.min_p > 0.0)
    }
}

/// What was drawn for one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drawn {
    /// The token.
    pub token: u32,
    /// Its log-probability under the distribution drawn from; for temperature 0: at temperature 1.
    pub logprob: f32,
    /// The same of before unlikely tokens were cut off.
    pub uncut_logprob: f32,
}

/// A number in [0, 1), the same for the same seed and position: SplitMix64's output function
/// (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014) over both.
#[must_use]
pub fn uniform(seed: u64, position: u64) -> f64 {
    let bits = mix(mix(seed).wrapping_add(position.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Draws one token per row of `logits` `[B, V]`, by one transfer from the device. Computed in f32
/// whatever the logits are in.
#[must_use]
pub fn draw(logits: &Tensor, draws: &[Draw]) -> Vec<Drawn> {
    let logits = &logits.to_kind(Kind::Float);
    let device = logits.device();
    let column = |numbers: Vec<f64>| Tensor::from_slice(&numbers).to_device(device).unsqueeze(1);
    let allowed = &drawable(logits, draws);
    let scaled = if draws.iter().all(|draw| draw.temperature == 0.0 || draw.temperature == 1.0) {
        allowed.shallow_clone()
    } else {
        let divisor = |draw: &Draw| if draw.temperature == 0.0 { 1.0 } else { draw.temperature };
        allowed / column(draws.iter().map(divisor).collect()).to_kind(Kind::Float)
    };
    let unlikely = unlikely(&scaled, draws);
    let logprobs = match &unlikely {
        Some(unlikely) => scaled.masked_fill(unlikely, f64::NEG_INFINITY).log_softmax(-1, Kind::Float),
        None => scaled.log_softmax(-1, Kind::Float),
    };
    let random = column(draws.iter().map(|draw| uniform(draw.seed, draw.position)).collect());
    let mut tokens = if draws.iter().any(|draw| draw.temperature > 0.0) {
        choose(&logprobs.exp(), &random)
    } else {
        random.to_kind(Kind::Int64)
    };
    if draws.iter().any(|draw| draw.temperature == 0.0) {
        let rows: Vec<bool> = draws.iter().map(|draw| draw.temperature == 0.0).collect();
        let rows = Tensor::from_slice(&rows).to_device(device).unsqueeze(1);
        tokens = allowed.argmax(-1, true).where_self(&rows, &tokens);
    }
    let chosen = logprobs.gather(1, &tokens, false);
    let uncut = match unlikely {
        Some(_) => scaled.gather(1, &tokens, false) - scaled.logsumexp([-1_i64].as_slice(), true),
        None => chosen.shallow_clone(),
    };
    let all = [&tokens, &chosen, &uncut].map(|column| column.to_kind(Kind::Double));
    let numbers = Vec::<f64>::try_from(Tensor::cat(&all, 1).view([-1])).expect("a contiguous tensor of f64");
    let one =
        |row: &[f64]| Drawn { token: row[0] as u32, logprob: row[1] as f32, uncut_logprob: row[2] as f32 };
    numbers.chunks_exact(3).map(one).collect()
}

/// The first token of each row of `probabilities` `[B, V]` whose cumulative probability passes the
/// row's random number `[B, 1]`; `[B, 1]`. Sums are in f64, so that a large vocabulary loses no
/// probability to rounding: first over chunks of the vocabulary, then within one.
fn choose(probabilities: &Tensor, random: &Tensor) -> Tensor {
    let (batch, vocabulary) = probabilities.size2().expect("a row of probabilities for each draw");
    let chunk = if vocabulary <= 4 * CHUNK { vocabulary } else { CHUNK };
    let short = (chunk - vocabulary % chunk) % chunk;
    let chunks = if short == 0 {
        probabilities.view([batch, -1, chunk])
    } else {
        probabilities.constant_pad_nd([0, short]).view([batch, -1, chunk])
    };
    let dim = [-1_i64];
    let sums = chunks.sum_dim_intlist(dim.as_slice(), false, Kind::Double);
    let random = random.clamp_max(BELOW_ONE);
    let (which, share) = passed(&sums, &random);
    let within = chunks.gather(1, &which.unsqueeze(2).expand([-1, 1, chunk], false), false).squeeze_dim(1);
    let (token, _) = passed(&within.to_kind(Kind::Double), &share);
    (which * chunk + token).clamp_max(vocabulary - 1)
}

/// The first place of each row of `parts` `[B, N]` at which the sum passes the share `[B, 1]` of
/// the whole, and how much of that part is passed, as a share of it below 1; `[B, 1]` both.
fn passed(parts: &Tensor, share: &Tensor) -> (Tensor, Tensor) {
    let last = parts.size()[1] - 1;
    let sums = parts.cumsum(-1, Kind::Double);
    let threshold = share * sums.narrow(1, last, 1);
    let dim = [-1_i64];
    let place = sums.le_tensor(&threshold).sum_dim_intlist(dim.as_slice(), true, Kind::Int64).clamp_max(last);
    let part = parts.gather(1, &place, false);
    let before = sums.gather(1, &place, false) - &part;
    (place, ((threshold - before) / part).clamp(0.0, BELOW_ONE))
}

/// The logits with those of tokens that may not be drawn at −∞, so that their probability is 0.
fn drawable(logits: &Tensor, draws: &[Draw]) -> Tensor {
    let vocabulary = logits.size()[1];
    if draws.iter().all(|draw| draw.below.is_none_or(|below| i64::from(below) >= vocabulary)) {
        return logits.shallow_clone();
    }
    let below: Vec<i64> = draws.iter().map(|draw| draw.below.map_or(vocabulary, i64::from)).collect();
    let below = Tensor::from_slice(&below).to_device(logits.device()).unsqueeze(1);
    let tokens = Tensor::arange(vocabulary, (Kind::Int64, logits.device())).unsqueeze(0);
    logits.masked_fill(&tokens.ge_tensor(&below), f64::NEG_INFINITY)
}
