//! Names and keys: what is printed is read back, and every key has one spelling.

use std::collections::HashSet;

use millrace_schemas::blob::Sha;
use millrace_schemas::{PoolName, RolloutId, RunId, Stage, TaskKey, WorkerId, limits};
use proptest::prelude::*;

fn keys() -> impl Strategy<Value = TaskKey> {
    let rollout = (any::<u64>(), any::<u32>(), any::<u32>()).prop_map(|(group, index, attempt)| RolloutId {
        group,
        index,
        attempt,
    });
    prop_oneof![
        (rollout.clone(), any::<u32>()).prop_map(|(rollout, turn)| TaskKey::EnvStep { rollout, turn }),
        (rollout.clone(), any::<u32>()).prop_map(|(rollout, turn)| TaskKey::Generate { rollout, turn }),
        (rollout, any::<u32>()).prop_map(|(rollout, reward)| TaskKey::Reward { rollout, reward }),
        (any::<u64>(), any::<u32>(), any::<u32>()).prop_map(|(makes, rank, attempt)| TaskKey::TrainShard {
            makes,
            rank,
            attempt
        }),
        (any::<u64>(), any::<u32>())
            .prop_map(|(version, attempt)| TaskKey::PublishWeights { version, attempt }),
    ]
}

proptest! {
    #[test]
    fn a_key_is_read_back(key in keys()) {
        let text = key.to_string();
        prop_assert_eq!(text.parse::<TaskKey>().unwrap(), key);
        prop_assert!(text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-'), "a single subject token");
    }

    #[test]
    fn a_word_that_is_read_as_a_key_is_printed_the_same(word in "[gspraekw0-9-]{1,24}") {
        if let Ok(key) = word.parse::<TaskKey>() {
            prop_assert_eq!(key.to_string(), word);
        }
    }
}

#[test]
fn keys_that_are_none_are_refused() {
    let wrong = [
        "",
        "g1r2a3",
        "g1r2a3-",
        "g1r2a3-x1",
        "g1r2a3-e",
        "g1r2a3-e1x",
        "g01r2a3-e1",
        "g1r2a3-e01",
        "G1r2a3-e1",
        "g-1r2a3-e1",
        "g1r2a3-e99999999999",
        "s1k2",
        "s1k2a3 ",
        "p1",
        "p1a2-e1",
        "p99999999999999999999a0",
    ];
    for word in wrong {
        assert!(word.parse::<TaskKey>().is_err(), "{word:?} is taken for a key");
    }
}

#[test]
fn names_hold_what_a_subject_token_and_a_folder_can() {
    for good in ["a", "frozen-lake", "run_2", "0"] {
        assert_eq!(good.parse::<RunId>().unwrap().as_str(), good);
    }
    for bad in ["", "A", "a.b", "a b", "a*", "a>", "../a", "a/b", "ä", "a\n", "$a"] {
        assert!(bad.parse::<RunId>().is_err(), "{bad:?}");
        assert!(bad.parse::<PoolName>().is_err(), "{bad:?}");
        assert!(bad.parse::<WorkerId>().is_err(), "{bad:?}");
        let json = serde_json::to_string(bad).unwrap();
        assert!(serde_json::from_str::<RunId>(&json).is_err(), "{bad:?} enters by deserialisation");
    }
}

#[test]
fn names_have_their_bounds() {
    let word = |chars: usize| "a".repeat(chars);
    assert!(word(limits::MAX_RUN_NAME_CHARS).parse::<RunId>().is_ok());
    assert!(word(limits::MAX_RUN_NAME_CHARS + 1).parse::<RunId>().is_err());
    assert!(word(limits::MAX_POOL_NAME_CHARS).parse::<PoolName>().is_ok());
    assert!(word(limits::MAX_POOL_NAME_CHARS + 1).parse::<PoolName>().is_err());
    assert!(word(limits::MAX_WORKER_NAME_CHARS).parse::<WorkerId>().is_ok());
    assert!(word(limits::MAX_WORKER_NAME_CHARS + 1).parse::<WorkerId>().is_err());
}

#[test]
fn stages_have_one_spelling() {
    let names: HashSet<&str> = Stage::ALL.iter().map(|stage| stage.name()).collect();
    assert_eq!(names.len(), Stage::ALL.len());
    for stage in Stage::ALL {
        assert_eq!(stage.name().parse::<Stage>().unwrap(), stage);
        assert_eq!(serde_json::to_value(stage).unwrap(), stage.name());
        // A stage's name is a pool's too.
        assert!(stage.name().parse::<PoolName>().is_ok());
    }
    assert!("Generate".parse::<Stage>().is_err());
}

#[test]
fn hashes_have_one_spelling() {
    let sha = Sha::of(b"abc");
    assert_eq!(sha.to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_eq!(sha.to_string().parse::<Sha>().unwrap(), sha);
    assert_eq!(Sha::of_parts([b"a".as_slice(), b"bc"]), sha);
    assert!(sha.to_string().to_uppercase().parse::<Sha>().is_err());
    assert!("ba78".parse::<Sha>().is_err());
}
