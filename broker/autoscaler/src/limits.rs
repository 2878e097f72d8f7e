//! The bounds of a pool: its range, its step, and the cool-down before it shrinks. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use millrace_schemas::scale::ScaleLimit;

use crate::plan::Need;
use crate::spec::PoolSpec;

/// What a pool needed lately.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lately {
    /// Time since the start, and the need then; oldest first, and only those that a later one does
    /// not exceed.
    needs: VecDeque<(Duration, u32)>,
}

impl Lately {
    /// Records a need. Returns the most that was needed within the cool-down.
    fn most(&mut self, need: u32, now: Duration, cooldown: Duration) -> u32 {
        while self.needs.back().is_some_and(|(_, less)| *less <= need) {
            self.needs.pop_back();
        }
        self.needs.push_back((now, need));
        while self.needs.front().is_some_and(|(at, _)| now.saturating_sub(*at) > cooldown) {
            self.needs.pop_front();
        }
        self.needs.front().map_or(need, |(_, most)| *most)
    }
}

/// The number of workers that a pool is to have. `before` is the last decision's, `now` the time
/// since the start. The need's reason gets the limit that applied last. Of machines with several workers
/// it is a whole number.
pub fn limited(pool: &PoolSpec, need: &mut Need, lately: &mut Lately, before: u32, now: Duration) -> u32 {
    let mut workers = need.workers;
    let mut limit = |to: u32, why: ScaleLimit| {
        if to != workers {
            workers = to;
            need.reason.limit = Some(why);
        }
        workers
    };
    let wanted = limit(need.workers.min(pool.max), ScaleLimit::Max);
    let wanted = limit(wanted.max(pool.min), ScaleLimit::Min);
    let most = lately.most(wanted, now, pool.cooldown());
    // The bounds are of the file; what was needed lately may be above a new maximum.
    let most = most.min(pool.max);
    let wanted =
        if wanted < before { limit(most.min(before).max(wanted), ScaleLimit::CoolDown) } else { wanted };
    // With a step below a machine's workers the pool could not change.
    let step = pool.step.max(pool.workers_per_machine);
    let wanted =
        limit(wanted.clamp(before.saturating_sub(step), before.saturating_add(step)), ScaleLimit::Step);
    pool.of_whole_machines(wanted)
}

#[cfg(test)]
mod tests {
    use millrace_schemas::scale::{ScaleCause, ScaleReason};

    use super::*;
    use crate::spec::ScalingFile;

    fn pool(rest: &str) -> PoolSpec {
        let text = format!("[[pool]]\nname = \"a\"\nstages = [\"generate\"]\n{rest}");
        ScalingFile::parse(&text).unwrap().pools.remove(0)
    }

    fn decide(
        pool: &PoolSpec,
        lately: &mut Lately,
        workers: u32,
        before: u32,
        at: u64,
    ) -> (u32, Option<ScaleLimit>) {
        let reason = ScaleReason { cause: ScaleCause::Budget, limit: None, wanted: 0.0, budget: None };
        let mut need = Need { workers, reason };
        let workers = limited(pool, &mut need, lately, before, Duration::from_secs(at));
        (workers, need.reason.limit)
    }

    #[test]
    fn a_pool_stays_within_its_bounds_and_its_step() {
        let pool = pool("min = 1\nmax = 10\nstep = 3");
        let mut lately = Lately::default();
        assert_eq!(decide(&pool, &mut lately, 50, 8, 0), (10, Some(ScaleLimit::Max)));
        assert_eq!(decide(&pool, &mut lately, 50, 2, 1), (5, Some(ScaleLimit::Step)));
        assert_eq!(decide(&pool, &mut Lately::default(), 0, 2, 1), (1, Some(ScaleLimit::Min)));
        assert_eq!(decide(&pool, &mut Lately::default(), 0, 9, 1), (6, Some(ScaleLimit::Step)));
        assert_eq!(decide(&pool, &mut Lately::default(), 4, 4, 1), (4, None));
    }

    #[test]
    fn a_pool_of_machines_with_several_workers_has_whole_ones() {
        let pool = pool(
            "max = 24\nworkers_per_machine = 8\ncooldown_s = 0\ntarget = { kind = \"aws\", group = \"g\" }",
        );
        let mut lately = Lately::default();
        assert_eq!(decide(&pool, &mut lately, 16, 0, 0), (8, Some(ScaleLimit::Step)));
        assert_eq!(decide(&pool, &mut lately, 16, 8, 1), (16, None));
        assert_eq!(decide(&pool, &mut lately, 9, 16, 2), (16, None), "nine workers need two machines");
        assert_eq!(decide(&pool, &mut lately, 0, 16, 3), (8, Some(ScaleLimit::Step)));
        assert_eq!(decide(&pool, &mut lately, 99, 16, 4), (24, Some(ScaleLimit::Max)));
    }

    #[test]
    fn a_pool_grows_at_once_and_shrinks_after_the_cool_down() {
        let pool = pool("max = 10\nstep = 10\ncooldown_s = 30");
        let mut lately = Lately::default();
        assert_eq!(decide(&pool, &mut lately, 8, 1, 0), (8, None));
        assert_eq!(decide(&pool, &mut lately, 2, 8, 10), (8, Some(ScaleLimit::CoolDown)));
        assert_eq!(decide(&pool, &mut lately, 5, 8, 20), (8, Some(ScaleLimit::CoolDown)));
        assert_eq!(decide(&pool, &mut lately, 2, 8, 31), (5, Some(ScaleLimit::CoolDown)));
        assert_eq!(decide(&pool, &mut lately, 2, 5, 60), (2, None));
    }

    #[test]
    fn what_was_needed_before_a_new_maximum_does_not_count() {
        let mut lately = Lately::default();
        decide(&pool("max = 10\nstep = 10"), &mut lately, 8, 0, 0);
        assert_eq!(decide(&pool("max = 3\nstep = 10"), &mut lately, 2, 8, 1).0, 3);
    }
}
