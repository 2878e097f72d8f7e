//! What the fold reports for traces: each rollout begins once and ends once, as the books count.

use std::collections::BTreeMap;

use millrace_coordinator::fold::Command;
use millrace_coordinator::fold::milestone::Milestone;

use super::*;

/// All milestones of a log, in order.
fn milestones(log: &[Event]) -> Vec<Milestone> {
    let mut state = State::default();
    let mut all = Vec::new();
    for (event, seq) in log.iter().zip(1..) {
        for command in state.advance_and_report(seq, RUN, event.clone()) {
            if let Command::Report { run, milestones } = command {
                assert_eq!(run.as_str(), RUN);
                assert!(!milestones.is_empty());
                all.extend(milestones);
            }
        }
    }
    all
}

/// The rollouts that began and how each ended, once each: a drop's reason, "trained", "evaluated".
fn ends(milestones: &[Milestone]) -> BTreeMap<RolloutId, (bool, Option<&'static str>)> {
    let mut rollouts = BTreeMap::new();
    let mut cut = BTreeSet::new();
    for milestone in milestones {
        let (rollout, how) = match milestone {
            Milestone::Admitted { rollout, evaluate, .. } => {
                assert!(rollouts.insert(*rollout, (*evaluate, None)).is_none(), "{rollout} begins twice");
                continue;
            }
            Milestone::Cut { rollouts, .. } => {
                assert!(rollouts.iter().all(|rollout| cut.insert(*rollout)), "{rollouts:?} again");
                continue;
            }
            Milestone::Committed { .. } => continue,
            Milestone::Dropped { rollout, reason, .. } => (rollout, *reason),
            Milestone::Evaluated { rollout, .. } => (rollout, "evaluated"),
            Milestone::Trained { rollout, .. } => {
                assert!(cut.contains(rollout), "{rollout} was in no batch");
                (rollout, "trained")
            }
        };
        let (evaluate, end) = rollouts.get_mut(rollout).expect("it began");
        assert_eq!(*end, None, "{rollout} ends twice");
        assert_eq!(how == "evaluated", *evaluate && how != "failed", "{rollout}: {how}");
        *end = Some(how);
    }
    rollouts
}

#[test]
fn milestones_are_the_books_rollout_by_rollout() {
    let mut harness = Harness::submit(&spec("alpha = 2.0\nmax_replacements = 1"), 0);
    // Some turns fail for good, those of replacements and of held-out prompts too.
    for number in 0..40 {
        for _ in 0..number {
            harness.work();
        }
        let Some((_, task)) = harness.queue.iter().next().map(|(name, task)| (name.clone(), task.clone()))
        else {
            break;
        };
        if task.key.rollout().is_some() {
            harness.queue.retain(|_, queued| queued.key != task.key);
            let reason = "an engine is broken".to_owned();
            harness.append(Event::DeadLetter { key: task.key, reason, exhausted: false });
        }
    }
    to_the_end(&mut harness);
    let (run, ledger) = (harness.run(), status::ledger(harness.run()));
    let milestones = milestones(&harness.log);
    let ends = ends(&milestones);
    let count =
        |end: &str| ends.values().filter(|(evaluate, how)| !evaluate && *how == Some(end)).count() as u64;
    assert_eq!(ends.values().filter(|(evaluate, _)| !evaluate).count() as u64, ledger.admitted);
    assert_eq!(count("trained"), ledger.trained);
    for (reason, dropped) in &ledger.dropped {
        assert_eq!(count(reason), *dropped, "{reason}");
    }
    assert!(ledger.dropped.contains_key("failed"), "{ledger:?}");
    let held_out = |how| ends.values().filter(|end| **end == (true, Some(how))).count();
    let evaluations = &run.books.evaluations;
    assert_eq!(held_out("evaluated") as u32, evaluations.iter().map(|done| done.prompts).sum::<u32>());
    assert!(held_out("failed") > 0, "a held-out prompt failed");
    assert!(ends.values().all(|(_, how)| how.is_some()), "the run is over");
    let committed: Vec<u64> = milestones
        .iter()
        .filter_map(|milestone| match milestone {
            Milestone::Committed { version } => Some(version.0),
            _ => None,
        })
        .collect();
    assert_eq!(committed, (0..=6).collect::<Vec<_>>());
    // They leave the state as they come: no snapshot has them, and none is repeated.
    assert_eq!(
        bytes(&replay(&harness.log)),
        bytes(&decode("state", &bytes(&harness.state)).expect("a snapshot"))
    );
}
