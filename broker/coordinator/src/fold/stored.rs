//! Turns of earlier rollouts from which later ones start: a curriculum that moves from the goal
//! back to the beginning.
//!
//! If only few rollouts of a group reached the goal, the log positions of the shortest of them are
//! kept. Each entry of the environment in the log includes the environment's state, and
//! environments keep no state themselves, so a rollout can continue from any of them. Earlier turns
//! are context: they are not trained on a second time.

use std::collections::VecDeque;

use millrace_schemas::api::StoredStatus;
use millrace_schemas::{EntryRef, RunSpec};
use serde::{Deserialize, Serialize};

use crate::fold::rollout::{Group, Rollout, Start};
use crate::fold::seeds::{Purpose, mix, seed};

/// A trajectory that reached the goal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SolvedTrajectory {
    /// Number within the run, from 0.
    pub id: u64,
    /// Number of its prompt.
    pub prompt: u64,
    /// Its log entries, from the beginning to the goal. `[1 + 2·turns]`
    pub trajectory: Vec<EntryRef>,
    /// How many turns before the goal the next group starts, from 1 to all of them.
    #[serde(rename = "back")]
    pub turns_from_goal: u32,
}

/// The stored turns of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StoredTurns {
    /// Trajectories that groups may start from, the oldest first.
    #[serde(rename = "paths")]
    pub trajectories: VecDeque<SolvedTrajectory>,
    /// Trajectories stored so far; the next one's id.
    pub next: u64,
    /// Groups that started from one and were played to the end.
    pub groups: u64,
    /// Trajectories that were learnt to the beginning, and removed.
    pub learnt: u64,
}

impl SolvedTrajectory {
    fn turns(&self) -> usize {
        self.trajectory.len() / 2
    }

    fn start(&self) -> Option<Start> {
        let before = self.turns().checked_sub(self.turns_from_goal as usize)?;
        let trajectory = self.trajectory.get(..=2 * before)?.to_vec();
        Some(Start { source: self.id, turns_from_goal: self.turns_from_goal, trajectory })
    }
}

impl StoredTurns {
    /// Drops the log positions; the counts are kept.
    pub(crate) fn forget(&mut self) {
        self.trajectories.iter_mut().for_each(|stored| stored.trajectory = Vec::new());
    }

    /// The status for the API.
    #[must_use]
    pub fn status(&self) -> StoredStatus {
        let turns: u64 = self.trajectories.iter().map(|stored| u64::from(stored.turns_from_goal)).sum();
        StoredStatus {
            rollouts: self.trajectories.len() as u64,
            groups: self.groups,
            learnt: self.learnt,
            mean_turns_left: turns as f64 / self.trajectories.len().max(1) as f64,
        }
    }

    /// The prompt and the start of the group of this number, if it starts from a stored turn.
    #[must_use]
    pub fn draw(&self, spec: &RunSpec, group: u64) -> Option<(u64, Start)> {
        if !spec.rollout.stored_turns.is_on() || self.trajectories.is_empty() {
            return None;
        }
        let drawn = seed(spec.seed, Purpose::StoredTurn, &[group]);
        // The upper 53 bits as a number from 0 to 1.
        let number = (drawn >> 11) as f64 / (1_u64 << 53) as f64;
        if number >= spec.rollout.stored_turns.share {
            return None;
        }
        let stored = self.trajectories.get((mix(drawn) % self.trajectories.len() as u64) as usize)?;
        Some((stored.prompt, stored.start()?))
    }

    /// A group from `start` has played: `solved` is the share that reached the goal.
    fn played(&mut self, start: &Start, solved: f64, learnt: f64) {
        self.groups += 1;
        // Several groups may start from one trajectory at once. The first to end moves the start.
        let at = self
            .trajectories
            .iter()
            .position(|stored| stored.id == start.source && stored.turns_from_goal == start.turns_from_goal);
        let Some(stored) = at.and_then(|at| self.trajectories.get_mut(at)) else { return };
        if solved >= learnt {
            stored.turns_from_goal += 1;
        } else if solved == 0.0 {
            stored.turns_from_goal = stored.turns_from_goal.saturating_sub(1).max(1);
        }
        if stored.turns_from_goal as usize > stored.turns() {
            self.learnt += 1;
            self.trajectories.retain(|stored| stored.id != start.source);
        }
    }

    /// A group is finished: moves the start that it continued from, or stores its shortest
    /// trajectory that reached the goal.
    pub(crate) fn group_finished(&mut self, spec: &RunSpec, group: &Group) {
        let settings = spec.rollout.stored_turns;
        if !settings.is_on() {
            return;
        }
        let Group { rollouts, start, prompt, .. } = group;
        let reached = || rollouts.iter().filter(|rollout| rollout.success);
        let solved = reached().count() as f64 / rollouts.len().max(1) as f64;
        match start {
            Some(start) => self.played(start, solved, settings.learnt),
            None if solved < settings.learnt => {
                if let Some(shortest) = reached().min_by_key(|rollout| rollout.turns_taken()) {
                    self.keep(*prompt, shortest, settings.keep);
                }
            }
            None => {}
        }
    }

    fn keep(&mut self, prompt: u64, rollout: &Rollout, most: u32) {
        let known = self.trajectories.iter().any(|stored| stored.prompt == prompt);
        // A fork has no place in one line of turns.
        if known || rollout.turns_taken() < 2 || !rollout.forks.is_empty() {
            return;
        }
        let solved = SolvedTrajectory {
            id: self.next,
            prompt,
            trajectory: rollout.trajectory.clone(),
            turns_from_goal: 1,
        };
        self.next += 1;
        self.trajectories.push_back(solved);
        while self.trajectories.len() > most as usize {
            self.trajectories.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_schemas::PolicyVersion;
    use millrace_schemas::train_shard::BatchTurn;

    use super::*;

    /// A rollout of three turns.
    fn solved() -> Rollout {
        // Each observation has two tokens and each turn has one.
        let entry = |seq: u64| EntryRef { seq, tokens: 2 - (seq % 2) as u32, check: seq };
        let turn = BatchTurn { at: 0, logprobs: Vec::new(), segments: Vec::new(), reward: 0.0 };
        Rollout {
            trajectory: (0..7).map(entry).collect(),
            turns: vec![turn; 3],
            success: true,
            ..Rollout::new(PolicyVersion(0), 1, None)
        }
    }

    #[test]
    fn a_start_moves_back_when_it_is_learnt_and_forward_when_it_is_too_hard() {
        let mut stored = StoredTurns::default();
        stored.keep(7, &solved(), 4);
        let at = |stored: &StoredTurns| {
            let start = stored.trajectories.front().and_then(SolvedTrajectory::start)?;
            let tokens: u32 = start.trajectory.iter().map(|entry| entry.tokens).sum();
            Some((start.turns_from_goal, tokens, start.trajectory.len() / 2 + 1))
        };
        let play = |stored: &mut StoredTurns, share| {
            let start = stored.trajectories.front().and_then(SolvedTrajectory::start).expect("a start");
            stored.played(&start, share, 0.5);
        };
        assert_eq!(at(&stored), Some((1, 8, 3)), "before its last turn");
        play(&mut stored, 0.25);
        assert_eq!(at(&stored), Some((1, 8, 3)), "not yet");
        play(&mut stored, 0.5);
        assert_eq!(at(&stored), Some((2, 5, 2)));
        play(&mut stored, 0.0);
        assert_eq!(at(&stored), Some((1, 8, 3)), "too hard");
        play(&mut stored, 0.0);
        assert_eq!(at(&stored), Some((1, 8, 3)), "nothing is nearer to the goal");
        // Of two groups with the same start, one moves it.
        let both = stored.trajectories[0].start().expect("a start");
        stored.played(&both, 1.0, 0.5);
        stored.played(&both, 1.0, 0.5);
        assert_eq!(at(&stored), Some((2, 5, 2)));
        play(&mut stored, 1.0);
        assert_eq!(at(&stored), Some((3, 2, 1)), "the beginning");
        play(&mut stored, 1.0);
        assert_eq!((at(&stored), stored.learnt, stored.groups), (None, 1, 8));
    }

    #[test]
    fn the_newest_trajectories_are_kept_one_per_prompt() {
        let mut stored = StoredTurns::default();
        for prompt in [1, 2, 2, 3, 4] {
            stored.keep(prompt, &solved(), 3);
        }
        assert_eq!(stored.trajectories.iter().map(|stored| stored.prompt).collect::<Vec<_>>(), [2, 3, 4]);
        stored.keep(9, &Rollout { turns: solved().turns[..1].to_vec(), ..solved() }, 3);
        assert!(stored.trajectories.iter().all(|stored| stored.prompt != 9), "one turn is the beginning");
    }
}
