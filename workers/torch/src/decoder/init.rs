//! Initial weights from a seed, the same on every device and in every release of libtorch.

use millrace_policy::random::{Stream, fnv1a};

use super::Layout;

/// Initial weights in the order of `layout`, as Hugging Face initialises a Llama: matrices normal
/// with standard deviation `std` and mean 0, norms one, biases zero. Each tensor has a stream of
/// its own, so its values do not depend on how many layers come before it.
#[must_use]
pub(super) fn initial_weights(layout: &Layout, seed: u64, std: f64) -> Vec<f32> {
    let mut weights = Vec::with_capacity(usize::try_from(layout.len).unwrap_or(0));
    for part in &layout.parts {
        if part.is_matrix() {
            let mut normal = Normal::new(seed ^ fnv1a(&part.name));
            weights.extend((0..part.len()).map(|_| (std * normal.next()) as f32));
        } else {
            let start = if part.is_bias() { 0.0 } else { 1.0 };
            weights.extend((0..part.len()).map(|_| start));
        }
    }
    weights
}

/// Normal numbers by the Box-Muller transform, two at a time.
struct Normal {
    random: Stream,
    kept: Option<f64>,
}

impl Normal {
    fn new(seed: u64) -> Self {
        Self { random: Stream::new(seed), kept: None }
    }

    fn next(&mut self) -> f64 {
        if let Some(kept) = self.kept.take() {
            return kept;
        }
        // In (0, 1], so that the logarithm is finite.
        let uniform = 1.0 - self.random.unit();
        let radius = (-2.0 * uniform.ln()).sqrt();
        let (sin, cos) = (std::f64::consts::TAU * self.random.unit()).sin_cos();
        self.kept = Some(radius * sin);
        radius * cos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_numbers_have_mean_zero_and_variance_one() {
        let mut normal = Normal::new(7);
        let n = 100_000;
        let draws: Vec<f64> = (0..n).map(|_| normal.next()).collect();
        let mean = draws.iter().sum::<f64>() / f64::from(n);
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f64::from(n);
        // Four standard errors: 4/√n and 4·√(2/n).
        assert!(mean.abs() < 0.0127, "mean={mean}");
        assert!((variance - 1.0).abs() < 0.018, "variance={variance}");
    }
}
