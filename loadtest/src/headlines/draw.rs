//! Quantities that are drawn: tokens, seconds, turns. A draw follows from the seed and from what it
//! is for, so that every fleet of a scenario is offered the same work.

use millrace_policy::random::{Stream, fnv1a};
use serde::{Deserialize, Serialize};

use crate::virtual_run::normal;

/// A distribution of numbers of 0 or more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Draw {
    /// Always the same.
    Constant {
        /// The value.
        value: f64,
    },
    /// Gaussian; a negative draw is drawn again, so the mean lies above `mean`.
    Normal {
        /// The mean before negative draws are redrawn.
        mean: f64,
        /// The standard deviation before that.
        deviation: f64,
    },
    /// Log-normal, cut at `most`.
    LogNormal {
        /// The median.
        median: f64,
        /// The standard deviation of the logarithm.
        sigma: f64,
        /// A greater draw counts as this.
        most: f64,
    },
    /// As measured: each of these values, ascending and evenly spaced in the distribution, is as likely.
    Quantiles {
        /// The values.
        values: Box<[f64]>,
    },
}

impl Draw {
    /// Nothing at all.
    pub(super) const ZERO: Self = Self::Constant { value: 0.0 };

    /// The number that belongs to `seed` and `what`.
    pub(super) fn of(&self, seed: u64, what: &str) -> f64 {
        match *self {
            Self::Quantiles { ref values } => {
                let at = (unit(seed, what) * values.len() as f64) as usize;
                values.get(at).copied().unwrap_or(f64::NAN)
            }
            Self::Constant { value } => value,
            Self::Normal { mean, deviation } => {
                let mut stream = stream(seed, what);
                loop {
                    let drawn = mean + deviation * normal(&mut stream);
                    if drawn >= 0.0 {
                        return drawn;
                    }
                }
            }
            Self::LogNormal { median, sigma, most } => {
                (median * (sigma * normal(&mut stream(seed, what))).exp()).min(most)
            }
        }
    }

    /// What no draw exceeds.
    pub(super) const fn most(&self) -> f64 {
        match *self {
            Self::Constant { .. } | Self::Normal { .. } | Self::Quantiles { .. } => f64::INFINITY,
            Self::LogNormal { most, .. } => most,
        }
    }

    /// Why it is no distribution: field, value and remedy.
    pub(super) fn fault(&self) -> Option<String> {
        let is_size = |value: f64| value.is_finite() && value >= 0.0;
        match *self {
            Self::Constant { value } if !is_size(value) => {
                Some(format!("value={value} is no size; give 0 or more"))
            }
            Self::Normal { mean, .. } if !is_size(mean) => {
                Some(format!("mean={mean} is no size; give 0 or more, or negative draws never end"))
            }
            Self::Normal { deviation, .. } if !is_size(deviation) => {
                Some(format!("deviation={deviation} is no size; give 0 or more"))
            }
            Self::LogNormal { median, .. } if !(is_size(median) && median > 0.0) => {
                Some(format!("median={median} has no logarithm; give more than 0"))
            }
            Self::LogNormal { sigma, .. } if !is_size(sigma) => {
                Some(format!("sigma={sigma} is no size; give 0 or more"))
            }
            Self::LogNormal { median, most, .. } if most.is_nan() || most < median => {
                Some(format!("most={most} is below median={median}; give more"))
            }
            Self::Quantiles { ref values } if values.is_empty() || !values.iter().all(|v| is_size(*v)) => {
                Some(format!("values={values:?} are no sizes; give one or more, each 0 or more"))
            }
            Self::Constant { .. } | Self::Normal { .. } | Self::LogNormal { .. } | Self::Quantiles { .. } => {
                None
            }
        }
    }
}

/// A number in [0, 1) that belongs to `seed` and `what`.
pub(super) fn unit(seed: u64, what: &str) -> f64 {
    stream(seed, what).unit()
}

fn stream(seed: u64, what: &str) -> Stream {
    Stream::new(fnv1a(&format!("{seed} {what}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_draws_of_a_gaussian_are_drawn_again() {
        let draw = Draw::Normal { mean: 10.0, deviation: 10.0 };
        let drawn: Vec<f64> = (0..20_000).map(|n| draw.of(1, &n.to_string())).collect();
        assert!(drawn.iter().all(|value| *value >= 0.0));
        // The mean of N(10, 10) above 0: 10 + 10 φ(1)/Φ(1) = 12.876.
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        assert!((mean - 12.876).abs() < 0.2, "{mean}");
    }

    #[test]
    fn the_longest_of_a_batch_is_twenty_times_the_median() {
        let draw = Draw::LogNormal { median: 1_500.0, sigma: 1.0, most: 32_768.0 };
        let mut drawn: Vec<f64> = (0..2_048).map(|n| draw.of(1, &n.to_string())).collect();
        drawn.sort_unstable_by(f64::total_cmp);
        let (median, longest) = (drawn[1_024], drawn[2_047]);
        assert!(longest / median > 20.0, "{longest} / {median}");
    }
}
