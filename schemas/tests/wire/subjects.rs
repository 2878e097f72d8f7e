//! Subjects: built and taken apart in one file, and every filter meets exactly what it is for.

use millrace_schemas::{PolicyVersion, PoolName, RunId, Stage, subjects};

use crate::samples;

/// Whether a NATS filter matches a subject.
fn matches(filter: &str, subject: &str) -> bool {
    let (mut filter, mut subject) = (filter.split('.'), subject.split('.'));
    loop {
        match (filter.next(), subject.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(_)) => {}
            (Some(a), Some(b)) if a == b => {}
            _ => return false,
        }
    }
}

#[test]
fn a_tasks_subject_is_taken_apart_again() {
    for (name, task) in samples::tasks() {
        let subject = subjects::task(&task.pool, &task.run, task.version, task.key);
        let parts = subjects::parse_task(&subject).unwrap();
        assert_eq!(
            (parts.stage, parts.pool, parts.run, parts.version, parts.key),
            (task.stage(), task.pool, task.run, task.version, task.key),
            "{name}"
        );
    }
}

#[test]
fn filters_meet_their_own_stage_pool_run_and_version_only() {
    let (run, other): (RunId, RunId) = ("lake".parse().unwrap(), "lake-2".parse().unwrap());
    let pool: PoolName = "torch".parse().unwrap();
    for (name, task) in samples::tasks() {
        let subject = subjects::task(&task.pool, &task.run, PolicyVersion(4), task.key);
        for stage in Stage::QUEUED {
            let own = stage == task.stage();
            assert_eq!(matches(&subjects::task_stream_subjects(stage), &subject), own, "{name}");
            assert_eq!(matches(&subjects::consumer_filter(stage, &task.pool), &subject), own, "{name}");
            assert!(!matches(&subjects::consumer_filter(stage, &pool), &subject), "{name}");
            assert_eq!(matches(&subjects::tasks_of_run(stage, &run), &subject), own, "{name}");
            assert!(!matches(&subjects::tasks_of_run(stage, &other), &subject), "{name}");
            let of = |version| subjects::tasks_of_version(stage, &run, PolicyVersion(version));
            assert_eq!(matches(&of(4), &subject), own, "{name}");
            // Version 4 is not a prefix of 40, nor 44 of 4.
            assert!(!matches(&of(40), &subject) && !matches(&of(44), &subject), "{name}");
        }
        assert!(!matches(subjects::LOG_ALL, &subject) && !matches(subjects::NOTICE_ALL, &subject));
    }
}

#[test]
fn subjects_that_are_no_tasks_are_refused() {
    let wrong = [
        "",
        "mr.task",
        "mr.task.generate.p.run.v1",
        "mr.task.generate.p.run.v1.g1r0a0-s1.more",
        "mr.task.generate.p.run.1.g1r0a0-s1",
        "mr.task.generate.p.run.v01.g1r0a0-s1",
        "mr.task.generate.p.run.v+1.g1r0a0-s1",
        "mr.task.reward.p.run.v1.g1r0a0-s1",
        "mr.task.generates.p.run.v1.g1r0a0-s1",
        "mr.task.generate.P.run.v1.g1r0a0-s1",
        "mr.task.generate.p..v1.g1r0a0-s1",
        "mr.task.generate.p.run.v1.x",
        "mr.log.run.outcome",
    ];
    for subject in wrong {
        assert!(subjects::parse_task(subject).is_err(), "{subject:?}");
    }
}

#[test]
fn the_run_of_an_event_is_in_its_subject() {
    let event = millrace_schemas::Event::Tick { unix_ms: 0 };
    let subject = subjects::log("lake", &event);
    assert!(matches(subjects::LOG_ALL, &subject));
    assert_eq!(subjects::run_of_log(&subject), Some("lake"));
    assert_eq!(subjects::run_of_log("mr.notice.lake.step"), None);
}

#[test]
fn what_is_said_of_a_task_names_its_stage_and_stands_nowhere_else() {
    let key: millrace_schemas::TaskKey = "g1r0a0-s1".parse().unwrap();
    let dead = millrace_schemas::Event::DeadLetter { key, reason: String::new(), exhausted: false };
    let subject = subjects::log("lake", &dead);
    assert_eq!(subject, "mr.log.lake.dead_letter.generate");
    assert!(matches(&subjects::deaths_of_stage(Stage::Generate), &subject));
    assert!(subjects::is_subject_of(&subject, "lake", &dead));
    // As logs of earlier versions have it.
    assert!(subjects::is_subject_of("mr.log.lake.dead_letter", "lake", &dead));
    for other in ["mr.log.lake.dead_letter.reward", "mr.log.lake.outcome.generate", "mr.log.all.dead_letter"]
    {
        assert!(!subjects::is_subject_of(other, "lake", &dead), "{other}");
    }
    let cancelled = millrace_schemas::Event::Cancelled { reason: String::new() };
    assert!(!subjects::is_subject_of("mr.log.lake.outcome.generate", "lake", &cancelled));
}

#[test]
fn a_run_may_not_take_a_token_that_means_something_else() {
    // `mr.log.all.tick` concerns every run, `mr.notice.worker.<id>` is a worker's.
    for name in [subjects::ALL_RUNS, "worker"] {
        let mut spec = samples::run_spec();
        spec.name = name.parse().unwrap();
        let refusals = spec.refusals();
        assert!(refusals.iter().any(|refusal| refusal.field == "name"), "{name} is taken: {refusals:?}");
    }
}

#[test]
fn a_task_that_did_not_go_by_the_names_is_a_dead_letter_all_the_same() {
    assert_eq!(subjects::stage_of_task("mr.task.reward.whatever"), Some(Stage::Reward));
    assert_eq!(subjects::stage_of_task("mr.log.run.outcome"), None);
    for subject in ["mr.task.generate.no-key", "foreign.subject"] {
        assert!(matches(subjects::DEAD_ALL, &subjects::dead_stray(subject)));
    }
}
