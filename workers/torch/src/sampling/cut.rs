//! Tokens that are too unlikely to be drawn: beyond top-k, beyond top-p of what top-k left, below
//! min-p; in this order, as transformers applies them.

use tch::{Kind, Tensor};

use super::Draw;

/// Of a row's likeliest tokens, how many are looked at first: seldom are more in the nucleus, and
/// to sort a whole vocabulary costs as much as a layer.
const FIRST: i64 = 256;

/// Which tokens of `logits` `[B, V]`, already divided by the temperature, are too unlikely; `[B,
/// V]`, or `None` where no row cuts any off.
pub(super) fn unlikely(logits: &Tensor, draws: &[Draw]) -> Option<Tensor> {
    if !draws.iter().any(Draw::cuts) {
        return None;
    }
    let device = logits.device();
    let column = |of: fn(&Draw) -> f64| {
        let numbers: Vec<f64> = draws.iter().map(of).collect();
        Tensor::from_slice(&numbers).to_device(device).unsqueeze(1)
    };
    let uncut = f64::NEG_INFINITY;
    let share =
        column(|draw| if draw.cuts() && draw.min_p > 0.0 { draw.min_p.ln() } else { f64::NEG_INFINITY });
    let mut least = share + logits.amax([-1_i64].as_slice(), true).to_kind(Kind::Double);
    let ranks = |draw: &&Draw| draw.cuts() && (draw.top_k > 0 || draw.top_p < 1.0);
    if draws.iter().any(|draw| ranks(&draw)) {
        let top_k =
            column(|draw| if draw.cuts() && draw.top_k > 0 { f64::from(draw.top_k) } else { f64::INFINITY });
        let top_p = column(|draw| if draw.cuts() { draw.top_p } else { 1.0 });
        let largest = draws.iter().filter(ranks).map(|draw| i64::from(draw.top_k)).max().unwrap_or(0);
        let ranked = Ranked { logits, top_k: &top_k, top_p: &top_p };
        let vocabulary = logits.size()[1];
        let first = largest.max(FIRST).min(vocabulary);
        let worst = ranked.worst(first).unwrap_or_else(|| {
            ranked.worst(vocabulary).expect("all tokens together have all of the probability")
        });
        let rows: Vec<bool> = draws.iter().map(|draw| ranks(&draw)).collect();
        let rows = Tensor::from_slice(&rows).to_device(device).unsqueeze(1);
        let worst = worst.where_self(&rows, &worst.full_like(uncut));
        least = least.maximum(&worst);
    }
    Some(logits.to_kind(Kind::Double).lt_tensor(&least))
}

/// Rows to be cut by rank.
struct Ranked<'a> {
    logits: &'a Tensor,
    /// Ranks that are left; infinite for all. `[B, 1]`
    top_k: &'a Tensor,
    /// `[B, 1]`
    top_p: &'a Tensor,
}

impl Ranked<'_> {
    /// The logit `[B, 1]` of the last token of each row that is left, looking at the `first`
    /// likeliest; `None` if more must be looked at.
    fn worst(&self, first: i64) -> Option<Tensor> {
        let all = first == self.logits.size()[1];
        let (likeliest, _) = self.logits.topk(first, -1, true, true);
        let likeliest = likeliest.to_kind(Kind::Double);
        let rank = Tensor::arange(first, (Kind::Double, self.logits.device())).unsqueeze(0);
        let beyond = rank.ge_tensor(self.top_k);
        let dim = [-1_i64];
        // What top-k leaves is looked at as a whole; the rest of a row without top-k counts by its
        // sum alone.
        let of_k = likeliest.masked_fill(&beyond, f64::NEG_INFINITY).logsumexp(dim.as_slice(), true);
        let of_all = self.logits.to_kind(Kind::Double).logsumexp(dim.as_slice(), true);
        let total = of_k.where_self(&self.top_k.isfinite(), &of_all);
        let probabilities = (&likeliest - total).exp();
        let before = probabilities.cumsum(-1, Kind::Double) - &probabilities;
        let left = before.lt_tensor(self.top_p).logical_and(&beyond.logical_not());
        let count = left.sum_dim_intlist(dim.as_slice(), true, Kind::Int64);
        if !all {
            // A row whose every looked-at token is left may have more, unless top-k or top-p 1 says
            // otherwise.
            let open = count.eq(first).logical_and(&self.top_k.gt(first as f64));
            let open = open.logical_and(&self.top_p.lt(1.0));
            if bool::try_from(open.any()).unwrap_or(true) {
                return None;
            }
        }
        Some(likeliest.gather(1, &(count - 1).clamp_min(0), false))
    }
}
