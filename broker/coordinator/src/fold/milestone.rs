//! What happened to rollouts and versions: facts for traces. Nothing is decided by them.

use millrace_schemas::{PolicyVersion, RolloutId};

/// The milestones of the event that is being folded. They are made only where they are asked for.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Milestones(Option<Vec<Milestone>>);

impl Milestones {
    /// Asks for those of the next event, or asks for none.
    pub(crate) fn ask(&mut self, reports: bool) {
        self.0 = reports.then(Vec::new);
    }

    /// Adds one.
    pub(crate) fn add(&mut self, make: impl FnOnce() -> Milestone) {
        if let Some(asked) = &mut self.0 {
            asked.push(make());
        }
    }

    /// Adds one for each item.
    pub(crate) fn add_each<T>(&mut self, of: impl IntoIterator<Item = T>, make: impl FnMut(T) -> Milestone) {
        if let Some(asked) = &mut self.0 {
            asked.extend(of.into_iter().map(make));
        }
    }

    /// Those of the event; asks for no more.
    pub(crate) fn take(&mut self) -> Vec<Milestone> {
        self.0.take().unwrap_or_default()
    }
}

/// One fact of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Milestone {
    /// A rollout was admitted, for training or evaluation.
    Admitted {
        /// The rollout.
        rollout: RolloutId,
        /// The version when it was admitted.
        version: PolicyVersion,
        /// It is for evaluation, never trained on.
        evaluate: bool,
    },
    /// A rollout was dropped.
    Dropped {
        /// The rollout.
        rollout: RolloutId,
        /// Why, as ledgers name it.
        reason: &'static str,
        /// Worker microseconds spent on it.
        busy_us: u64,
    },
    /// A held-out rollout was played to its end and scored.
    Evaluated {
        /// The rollout.
        rollout: RolloutId,
        /// The version under evaluation.
        version: PolicyVersion,
        /// The goal was reached.
        success: bool,
    },
    /// A batch was cut: the step that trains on it begins.
    Cut {
        /// The version that the step makes.
        makes: PolicyVersion,
        /// The batch. `[groups · G]`
        rollouts: Vec<RolloutId>,
    },
    /// A committed version was trained on the rollout.
    Trained {
        /// The rollout.
        rollout: RolloutId,
        /// The version.
        made: PolicyVersion,
        /// In versions, from the rollout's start version.
        staleness: u64,
    },
    /// A version was committed and is the newest.
    Committed {
        /// The version.
        version: PolicyVersion,
    },
}
