//! Encoding loses nothing; decoding takes whole messages only and never panics.

use millrace_schemas::envelope::{decode, encode};
use millrace_schemas::train_shard::Batch;
use millrace_schemas::{Event, Outcome, Stage, Task};
use proptest::prelude::*;

use crate::samples;

#[test]
fn every_message_comes_back_equal() {
    for (name, task) in samples::tasks() {
        assert_eq!(decode::<Task>(name, &encode(&task)).unwrap(), task);
        assert!(task.is_coherent(), "{name}");
    }
    for (name, outcome) in samples::outcomes() {
        assert_eq!(decode::<Outcome>(name, &encode(&outcome)).unwrap(), outcome);
    }
    assert_eq!(decode::<Batch>("batch", &encode(&samples::batch())).unwrap(), samples::batch());
}

/// A thread's buffer is used again.
#[test]
fn a_message_has_the_librarys_bytes_after_longer_and_shorter_ones() {
    let long = "x".repeat(3 << 20);
    for (name, task) in samples::tasks() {
        for before in [long.as_str(), "", &long[..4_000]] {
            assert_eq!(encode(&before), rmp_serde::to_vec_named(&before).unwrap());
            assert_eq!(task.to_bytes(), rmp_serde::to_vec_named(&task).unwrap(), "{name}");
            assert_eq!(Task::from_bytes(&task.to_bytes()).unwrap(), task, "{name}");
        }
    }
}

#[test]
fn every_queued_stage_has_a_task_and_an_outcome() {
    let tasks: Vec<Stage> = samples::tasks().iter().map(|(_, task)| task.stage()).collect();
    let outcomes: Vec<Stage> = samples::outcomes().iter().map(|(_, outcome)| outcome.key.stage()).collect();
    for stage in Stage::QUEUED {
        assert!(tasks.contains(&stage) && outcomes.contains(&stage), "{stage}");
    }
}

#[test]
fn a_task_whose_name_is_of_another_stage_is_not_coherent() {
    let mut tasks = samples::tasks();
    let other = tasks[3].1.key;
    tasks[0].1.key = other;
    assert!(!tasks[0].1.is_coherent());
}

#[test]
fn every_prefix_is_refused() {
    for sample in samples::all() {
        for end in 0..sample.bytes.len() {
            // JSON may end in white space.
            let cut = &sample.bytes[..end];
            let whole = sample.bytes[end..].iter().all(u8::is_ascii_whitespace);
            assert!(whole || (sample.again)(cut).is_err(), "{} cut to {end} bytes is taken", sample.name);
        }
    }
}

#[test]
fn bytes_that_follow_are_refused() {
    for sample in samples::all() {
        let mut bytes = sample.bytes;
        bytes.push(0xc0);
        let error = (sample.again)(&bytes).expect_err(sample.name);
        assert!(error.contains("follow") || error.contains("trailing"), "{}: {error}", sample.name);
    }
}

#[test]
fn deep_nesting_is_refused_and_does_not_overflow_the_stack() {
    // 0x91 is an array of one, 0x81 a map of one pair, 0xc7 an extension: the things that nest.
    for opener in [[0x91_u8].as_slice(), &[0x81, 0xa1, b'x'], &[0xc7, 0x01, 0x00]] {
        let bytes = opener.repeat(1_000_000 / opener.len());
        assert!(decode::<Task>("task", &bytes).is_err());
        assert!(decode::<Event>("event", &bytes).is_err());
        assert!(decode::<serde_json::Value>("value", &bytes).is_err(), "a type that nests without bound");
    }
}

#[test]
fn a_length_that_the_message_does_not_have_is_refused_without_making_room_for_it() {
    // Arrays, maps, strings and byte strings that claim 4 Gi elements.
    for head in [0xdd_u8, 0xdf, 0xdb, 0xc6] {
        let bytes = [head, 0xff, 0xff, 0xff, 0xff, 0x00];
        assert!(decode::<Task>("task", &bytes).is_err());
        assert!(decode::<Vec<u32>>("tokens", &bytes).is_err());
        assert!(decode::<Batch>("batch", &bytes).is_err());
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        for sample in samples::all() {
            let _ = (sample.again)(&bytes);
        }
    }

    /// Closer to a message than random bytes: a real one with a few bytes changed. What is still
    /// taken must be stable: encoded and decoded once more it is the same.
    #[test]
    fn damaged_messages_never_panic(which in any::<prop::sample::Index>(), hits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let samples = samples::all();
        let sample = which.get(&samples);
        let mut bytes = sample.bytes.clone();
        for (at, value) in hits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(once) = (sample.again)(&bytes) {
            prop_assert_eq!((sample.again)(&once).expect("what was encoded decodes"), once);
        }
    }
}
