//! The learning rate of a step.

use std::f64::consts::PI;

use millrace_schemas::submit::{Algorithm, Schedule};

/// The learning rate of the step on version `base`: it rises to `learning_rate` over `warmup_steps`
/// steps, and comes down to its floor from there to step `decay_steps`. Half a cosine as in
/// Loshchilov and Hutter, "SGDR", 2017.
pub(super) fn rate(algorithm: &Algorithm, base: u64) -> f64 {
    let step = (base + 1) as f64;
    let (warmup, end) = (algorithm.warmup_steps as f64, algorithm.decay_steps as f64);
    if step < warmup {
        return algorithm.learning_rate * step / warmup;
    }
    let gone = ((step - warmup) / (end - warmup).max(1.0)).clamp(0.0, 1.0);
    let left = match algorithm.schedule {
        Schedule::Constant => 1.0,
        Schedule::Linear => 1.0 - gone,
        Schedule::Cosine => f64::midpoint(1.0, (PI * gone).cos()),
    };
    algorithm.learning_rate * (algorithm.floor + (1.0 - algorithm.floor) * left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(schedule: Schedule, warmup_steps: u64, decay_steps: u64, floor: f64) -> Vec<f64> {
        let learning_rate = 8.0;
        let algorithm =
            Algorithm { learning_rate, schedule, warmup_steps, decay_steps, floor, ..Algorithm::default() };
        (0..8).map(|base| rate(&algorithm, base)).collect()
    }

    #[test]
    fn the_learning_rate_rises_and_comes_down_as_asked() {
        assert_eq!(rates(Schedule::Constant, 0, 0, 0.0), [8.0; 8]);
        assert_eq!(rates(Schedule::Constant, 4, 0, 0.0), [2.0, 4.0, 6.0, 8.0, 8.0, 8.0, 8.0, 8.0]);
        assert_eq!(rates(Schedule::Linear, 2, 6, 0.0), [4.0, 8.0, 6.0, 4.0, 2.0, 0.0, 0.0, 0.0]);
        assert_eq!(rates(Schedule::Linear, 2, 6, 0.5), [4.0, 8.0, 7.0, 6.0, 5.0, 4.0, 4.0, 4.0]);
        let half = 0.5_f64.sqrt();
        let cosine = [4.0, 8.0, 4.0 + 4.0 * half, 4.0, 4.0 - 4.0 * half, 0.0, 0.0, 0.0];
        let ours = rates(Schedule::Cosine, 2, 6, 0.0);
        assert!(ours.iter().zip(cosine).all(|(a, b)| (a - b).abs() < 1e-14), "{ours:?}");
    }
}
