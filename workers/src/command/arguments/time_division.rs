//! The options of a device that generates and trains in turn.

use clap::Args;
use millrace_schemas::Stage;

use crate::runtime::{PoolSettings, TimeDivision};
use crate::train_shard::SharedDevice;

/// One device for two stages.
#[derive(Debug, Clone, Args)]
pub struct TimeDivisionArgs {
    /// Generate and train in turn on one device. When a batch is cut and this worker has a share of
    /// the step, its turns end with what was sampled and are handed back; it makes the step and then
    /// generates again. Needs both stages and the built-in engine
    #[arg(long, env = "MILLRACE_TIME_DIVISION")]
    time_division: bool,
    /// MiB of host memory that the engine's weights and the trainer's state may take together.
    /// Default: what is free. A step that needs more is refused before it begins
    #[arg(long, env = "MILLRACE_TIME_DIVISION_MEMORY", value_name = "MIB")]
    time_division_memory: Option<u64>,
}

/// Why the options are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TimeDivisionError {
    /// A stage is missing.
    #[error("--time-division shares a device between generate and train_shard: add {0} to --stages")]
    Stage(Stage),
    /// The engine is elsewhere.
    #[error("--time-division has no device to share with --engine openai: leave one of them out")]
    Server,
}

impl TimeDivisionArgs {
    /// The shared device; `None` without time division. `is_remote` where a server generates.
    ///
    /// # Errors
    /// The worker lacks one of the two stages, or a server generates.
    pub fn device(
        &self,
        pools: &[PoolSettings],
        is_remote: bool,
    ) -> Result<Option<SharedDevice>, TimeDivisionError> {
        if !self.time_division {
            return Ok(None);
        }
        let serves = |stage: &Stage| pools.iter().any(|pool| pool.stage == *stage);
        if let Some(missing) = [Stage::Generate, Stage::TrainShard].iter().find(|stage| !serves(stage)) {
            return Err(TimeDivisionError::Stage(*missing));
        }
        if is_remote {
            return Err(TimeDivisionError::Server);
        }
        let room = self.time_division_memory.map(|mib| mib.saturating_mul(1 << 20));
        Ok(Some(SharedDevice::new(TimeDivision::default(), room)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_shared_is_refused() {
        let pools = |stages: &[Stage]| -> Vec<PoolSettings> {
            let pool = |stage: &Stage| PoolSettings {
                stage: *stage,
                pool: "p".parse().expect("a name"),
                concurrency: 1,
            };
            stages.iter().map(pool).collect()
        };
        let arguments = TimeDivisionArgs { time_division: true, time_division_memory: None };
        let both = pools(&[Stage::Generate, Stage::TrainShard]);
        assert!(arguments.device(&both, false).is_ok_and(|device| device.is_some()));
        assert_eq!(arguments.device(&both, true).unwrap_err(), TimeDivisionError::Server);
        let missing = |stages: &[Stage]| arguments.device(&pools(stages), false).unwrap_err();
        assert_eq!(missing(&[Stage::Generate]), TimeDivisionError::Stage(Stage::TrainShard));
        assert_eq!(missing(&[Stage::TrainShard]), TimeDivisionError::Stage(Stage::Generate));
    }
}
