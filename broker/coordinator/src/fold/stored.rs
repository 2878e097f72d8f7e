//! Turns of earlier rollouts from which later ones start: a curriculum from the goal back to the beginning.
//!
//! Kept is, of a rollout that reached the goal where few of its group did, where its observations and turns are stored.
//! With what an environment answers its state is stored, and environments keep nothing themselves, so a rollout can go
//! on from any of them. The turns before are context: they are not trained on again.

use std::collections::VecDeque;

use millrace_schemas::api::StoredStatus;
use millrace_schemas::{EntryRef, RunSpec};
use serde::{Deserialize, Serialize};

use crate::fold::rollout::{Group, Rollout, Start};
use crate::fold::seeds::{Purpose, mix, seed};

/// A way to the goal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Path {
    /// Its name: counts the paths of a run.
    pub id: u64,
    /// The prompt.
    pub prompt: u64,
    /// Where it is stored, from the beginning to the goal. `[1 + 2·turns]`
    pub trajectory: Vec<EntryRef>,
    /// How many turns before the goal the next group starts, from 1 to all of them.
    pub back: u32,
}

/// The paths of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stored {
    /// The oldest first.
    pub paths: VecDeque<Path>,
    /// Paths stored so far.
    pub next: u64,
    /// Groups that started from one and were played to the end.
    pub groups: u64,
    /// Paths that were learnt to the beginning.
    pub learnt: u64,
}

impl Path {
    fn turns(&self) -> usize {
        self.trajectory.len() / 2
    }

    fn start(&self) -> Option<Start> {
        let before = self.turns().checked_sub(self.back as usize)?;
        let trajectory = self.trajectory.get(..=2 * before)?.to_vec();
        Some(Start { path: self.id, back: self.back, trajectory })
    }
}

impl Stored {
    /// Lets go of where the paths are stored; how they stand is kept.
    pub(crate) fn forget(&mut self) {
        self.paths.iter_mut().for_each(|path| path.trajectory = Vec::new());
    }

    /// How it stands.
    #[must_use]
    pub fn status(&self) -> StoredStatus {
        let turns: u64 = self.paths.iter().map(|path| u64::from(path.back)).sum();
        StoredStatus {
            rollouts: self.paths.len() as u64,
            groups: self.groups,
            learnt: self.learnt,
            mean_turns_left: turns as f64 / self.paths.len().max(1) as f64,
        }
    }

    /// The prompt and the start of the group of this number, if it starts from a stored turn.
    #[must_use]
    pub fn draw(&self, spec: &RunSpec, group: u64) -> Option<(u64, Start)> {
        if !spec.rollout.stored_turns.is_on() || self.paths.is_empty() {
            return None;
        }
        let drawn = seed(spec.seed, Purpose::StoredTurn, &[group]);
        // The upper 53 bits as a number from 0 to 1.
        let number = (drawn >> 11) as f64 / (1_u64 << 53) as f64;
        if number >= spec.rollout.stored_turns.share {
            return None;
        }
        let path = self.paths.get((mix(drawn) % self.paths.len() as u64) as usize)?;
        Some((path.prompt, path.start()?))
    }

    /// A group from `start` has played: `solved` is the share that reached the goal.
    fn played(&mut self, start: &Start, solved: f64, learnt: f64) {
        self.groups += 1;
        // Several groups may be on a path at once; the first to end moves its start.
        let at = self.paths.iter().position(|path| path.id == start.path && path.back == start.back);
        let Some(path) = at.and_then(|at| self.paths.get_mut(at)) else { return };
        if solved >= learnt {
            path.back += 1;
        } else if solved == 0.0 {
            path.back = path.back.saturating_sub(1).max(1);
        }
        if path.back as usize > path.turns() {
            self.learnt += 1;
            self.paths.retain(|path| path.id != start.path);
        }
    }

    /// A group is finished: moves the start that it went on from, or keeps the shortest of its trajectories to the goal.
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
        let known = self.paths.iter().any(|path| path.prompt == prompt);
        if known || rollout.turns_taken() < 2 {
            return;
        }
        let path = Path { id: self.next, prompt, trajectory: rollout.trajectory.clone(), back: 1 };
        self.next += 1;
        self.paths.push_back(path);
        while self.paths.len() > most as usize {
            self.paths.pop_front();
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
        // Two tokens are seen before each turn and after the last, and one is said.
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
        let mut stored = Stored::default();
        stored.keep(7, &solved(), 4);
        let at = |stored: &Stored| {
            let start = stored.paths.front().and_then(Path::start)?;
            let tokens: u32 = start.trajectory.iter().map(|entry| entry.tokens).sum();
            Some((start.back, tokens, start.trajectory.len() / 2 + 1))
        };
        let play = |stored: &mut Stored, share| {
            let start = stored.paths.front().and_then(Path::start).expect("a start");
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
        // Of two groups that began at the same place, one moves it.
        let both = stored.paths[0].start().expect("a start");
        stored.played(&both, 1.0, 0.5);
        stored.played(&both, 1.0, 0.5);
        assert_eq!(at(&stored), Some((2, 5, 2)));
        play(&mut stored, 1.0);
        assert_eq!(at(&stored), Some((3, 2, 1)), "the beginning");
        play(&mut stored, 1.0);
        assert_eq!((at(&stored), stored.learnt, stored.groups), (None, 1, 8));
    }

    #[test]
    fn the_newest_paths_are_kept_one_for_a_prompt() {
        let mut stored = Stored::default();
        for prompt in [1, 2, 2, 3, 4] {
            stored.keep(prompt, &solved(), 3);
        }
        assert_eq!(stored.paths.iter().map(|path| path.prompt).collect::<Vec<_>>(), [2, 3, 4]);
        stored.keep(9, &Rollout { turns: solved().turns[..1].to_vec(), ..solved() }, 3);
        assert!(stored.paths.iter().all(|path| path.prompt != 9), "one turn is the beginning");
    }
}
