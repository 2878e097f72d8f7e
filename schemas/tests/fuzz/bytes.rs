//! Messages: arbitrary bytes, and sound ones with bits flipped, cut short, or grown together.

use millrace_schemas::envelope::decode;
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::train_shard::Batch;
use millrace_schemas::{Event, Outcome, Task};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::fuzz::fuzz;
use crate::samples::all;

/// Decodes as every type that another process may send. What decodes can be checked and encoded.
fn read_all(bytes: &[u8]) {
    if let Ok(task) = decode::<Task>("task", bytes) {
        let _ = task.is_coherent();
    }
    if let Ok(Event::Outcome(outcome)) = decode::<Event>("event", bytes) {
        let _ = outcome.check();
    }
    if let Ok(outcome) = decode::<Outcome>("outcome", bytes) {
        if let Err(malformed) = outcome.check() {
            assert!(!malformed.to_string().is_empty());
        }
        let again: Outcome = decode("outcome", &millrace_schemas::envelope::encode(&outcome)).unwrap();
        assert_eq!(format!("{again:?}"), format!("{outcome:?}"));
    }
    let _ = decode::<Batch>("batch", bytes);
    if let Ok(manifest) = serde_json::from_slice::<Manifest>(bytes) {
        let _ = manifest.to_json();
    }
}

#[test]
fn arbitrary_bytes_are_read_or_refused() {
    fuzz(&vec(any::<u8>(), 0..512), |bytes| read_all(&bytes));
}

#[test]
fn sound_messages_with_wounds_are_read_or_refused() {
    let samples: Vec<Vec<u8>> = all().into_iter().map(|sample| sample.bytes).collect();
    let (one, other) = (0..samples.len(), 0..samples.len());
    let wounds = vec((any::<prop::sample::Index>(), any::<u8>()), 0..8);
    let wounded = (one, other, wounds, any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..3_u8);
    fuzz(&wounded, |(one, other, wounds, cut, from, how)| {
        let mut bytes = samples[one].clone();
        for (at, byte) in wounds {
            let at = at.index(bytes.len());
            bytes[at] ^= byte;
        }
        match how {
            0 => bytes.truncate(cut.index(bytes.len())),
            1 => {
                let tail = &samples[other][from.index(samples[other].len())..];
                bytes.truncate(cut.index(bytes.len()));
                bytes.extend_from_slice(tail);
            }
            _ => {}
        }
        read_all(&bytes);
    });
}

#[test]
fn counts_beyond_all_bounds_cost_nothing() {
    // Lists, maps, text and bytes that claim 2³² entries, alone and within a message.
    for head in [0xdd_u8, 0xdf, 0xdb, 0xc6] {
        let bomb = [&[head], &[0xff; 4][..]].concat();
        read_all(&bomb);
        for sample in all() {
            for at in 0..sample.bytes.len() {
                let bytes = [&sample.bytes[..at], &bomb[..], &sample.bytes[at..]].concat();
                read_all(&bytes);
            }
        }
    }
}

#[test]
fn deep_nesting_is_refused() {
    for open in [&[0x91_u8][..], &[0x81, 0xa1, b'x'], b"[", b"{\"files\":["] {
        let bytes = open.repeat(100_000);
        assert!(decode::<Task>("task", &bytes).is_err());
        read_all(&bytes);
    }
}
