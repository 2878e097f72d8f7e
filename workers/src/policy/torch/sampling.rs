//! Draws tokens. The random number of a draw follows from the request's seed and the token's position alone,
//! so a result depends neither on what else is in the batch nor on how often the worker was restarted.

use tch::{Kind, Tensor};

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

/// Draws one token per row of `logits` `[B, V]`: the first whose cumulative probability passes the row's
/// random number. Gives tokens and their log-probabilities under the distribution drawn from (at
/// temperature 0: at temperature 1), by one transfer from the device. The cumulative sum is in f64, so that
/// a large vocabulary loses no probability to rounding.
#[must_use]
pub fn draw(logits: &Tensor, draws: &[Draw]) -> Vec<(u32, f32)> {
    let device = logits.device();
    let column = |numbers: Vec<f64>| Tensor::from_slice(&numbers).to_device(device).unsqueeze(1);
    let greedy = draws.iter().any(|draw| draw.temperature == 0.0);
    let divisor = |draw: &Draw| if draw.temperature == 0.0 { 1.0 } else { draw.temperature };
    let temperature = column(draws.iter().map(divisor).collect()).to_kind(Kind::Float);
    let random = column(draws.iter().map(|draw| uniform(draw.seed, draw.position)).collect());

    let logits = &drawable(logits, draws);
    let logprobs = (logits / temperature).log_softmax(-1, Kind::Float);
    let cumulative = logprobs.to_kind(Kind::Double).exp().cumsum(-1, Kind::Double);
    let last = logits.size()[1] - 1;
    let threshold = random * cumulative.narrow(1, last, 1);
    let dim = [-1_i64];
    let passed = cumulative.le_tensor(&threshold).sum_dim_intlist(dim.as_slice(), true, Kind::Int64);
    let mut tokens = passed.clamp_max(last);
    if greedy {
        let rows: Vec<bool> = draws.iter().map(|draw| draw.temperature == 0.0).collect();
        let rows = Tensor::from_slice(&rows).to_device(device).unsqueeze(1);
        tokens = logits.argmax(-1, true).where_self(&rows, &tokens);
    }
    let chosen = logprobs.gather(1, &tokens, false);
    let both = Tensor::cat(&[tokens.to_kind(Kind::Double), chosen.to_kind(Kind::Double)], 1);
    let numbers = Vec::<f64>::try_from(both.view([-1])).expect("a contiguous tensor of f64");
    numbers.chunks_exact(2).map(|pair| (pair[0] as u32, pair[1] as f32)).collect()
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
