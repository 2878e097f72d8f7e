//! Spans of tokens that lie one after another: the turns of a rollout, the rollouts of a forward.

use super::ratio::MAX_LOG_RATIO;

/// `e^log_ratio`, its exponent cut to ±[`MAX_LOG_RATIO`].
#[must_use]
pub fn ratio(log_ratio: f64) -> f64 {
    log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
}

/// The product of the tokens' ratios.
#[must_use]
pub fn product(log_ratios: &[f64]) -> f64 {
    ratio(log_ratios.iter().sum())
}

/// For each token the mean over its span. `lengths` add up to the tokens; an empty span has none.
#[must_use]
pub fn means(numbers: &[f64], lengths: &[usize]) -> Vec<f64> {
    let mut from = 0;
    let mut means = Vec::with_capacity(numbers.len());
    for &length in lengths {
        let mean = numbers[from..from + length].iter().sum::<f64>() / length.max(1) as f64;
        means.extend(std::iter::repeat_n(mean, length));
        from += length;
    }
    means
}

/// Spans of the tokens of a forward, on its device.
#[derive(Debug)]
pub struct Spans {
    /// The index of each span's tokens, padded with the index after the last. `[S, L]`
    places: tch::Tensor,
    /// Each token's span. `[M]`
    of: tch::Tensor,
    /// Tokens of each span. `[S]` of f64
    lengths: tch::Tensor,
}

impl Spans {
    /// Spans of these lengths, 1 or more each.
    #[must_use]
    pub fn new(lengths: &[usize], device: tch::Device) -> Self {
        let (count, most) = (lengths.len(), lengths.iter().copied().max().unwrap_or(0));
        let tokens: usize = lengths.iter().sum();
        let mut places = vec![tokens as i64; count * most];
        let (mut of, mut from) = (Vec::with_capacity(tokens), 0);
        for (span, &length) in lengths.iter().enumerate() {
            let row = &mut places[span * most..][..length];
            row.iter_mut().zip(from..).for_each(|(place, at)| *place = at);
            of.extend(std::iter::repeat_n(span as i64, length));
            from += length as i64;
        }
        let lengths: Vec<f64> = lengths.iter().map(|&length| length as f64).collect();
        Self {
            places: tch::Tensor::from_slice(&places).view([count as i64, most as i64]).to_device(device),
            of: tch::Tensor::from_slice(&of).to_device(device),
            lengths: tch::Tensor::from_slice(&lengths).to_device(device),
        }
    }

    /// The sum over each span, `[S]` of f64: added up in the same order each time, unlike by
    /// indices on a GPU.
    pub fn sums(&self, per_token: &tch::Tensor) -> tch::Tensor {
        let numbers = per_token.to_kind(tch::Kind::Double);
        let filled =
            tch::Tensor::cat(&[&numbers, &numbers.new_zeros([1], (numbers.kind(), numbers.device()))], 0);
        let rows = filled.index_select(0, &self.places.view([-1])).view_as(&self.places);
        let last = [1_i64];
        rows.sum_dim_intlist(last.as_slice(), false, tch::Kind::Double)
    }

    /// For each token the length of its span, `[M]` of f64.
    pub fn lengths(&self) -> tch::Tensor {
        self.lengths.index_select(0, &self.of)
    }

    /// For each token the mean over its span, `[M]` of f64.
    pub fn means(&self, per_token: &tch::Tensor) -> tch::Tensor {
        (self.sums(per_token) / &self.lengths).index_select(0, &self.of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_a_forward_are_those_of_a_rollout() {
        let lengths = [3, 1, 4, 2];
        let numbers: Vec<f64> = (0..10).map(|n| f64::from(n * n) / 7.0).collect();
        let ours = Spans::new(&lengths, tch::Device::Cpu);
        let tensor = tch::Tensor::from_slice(&numbers);
        assert_eq!(Vec::<f64>::try_from(ours.means(&tensor)).unwrap(), means(&numbers, &lengths));
        let sums = Vec::<f64>::try_from(ours.sums(&tensor)).unwrap();
        assert!((sums[2] - numbers[4..8].iter().sum::<f64>()).abs() < 1e-12 && sums.len() == 4);
    }
}
