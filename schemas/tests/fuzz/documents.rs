//! Run files: arbitrary text, and sound ones with a value or a stretch of text replaced.

use millrace_schemas::submit::{from_json, from_toml};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;

use crate::fuzz::fuzz;
use crate::samples::run_spec;

fn read(json: &[u8]) {
    match from_json(json) {
        // An accepted file is consistent: it round-trips, and its window is a number.
        Ok(spec) => {
            assert!(spec.refusals().is_empty());
            let _ = (spec.window_groups(), spec.max_staleness(), spec.hash(), spec.sample_below());
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}

#[test]
fn arbitrary_text_is_read_or_refused() {
    fuzz(&vec(any::<u8>(), 0..400), |bytes| read(&bytes));
    fuzz(&".{0,200}", |text| {
        let _ = from_toml(&text);
    });
}

#[test]
fn run_files_with_wounds_are_read_or_refused() {
    let sound = toml::to_string(&run_spec()).unwrap();
    let wound = (any::<prop::sample::Index>(), 0..40_usize, "[\\[\\]{}\"=a-z0-9.\n-]{0,12}");
    fuzz(&wound, |(at, length, text)| {
        let chars: Vec<char> = sound.chars().collect();
        let at = at.index(chars.len());
        let end = (at + length).min(chars.len());
        let wounded: String =
            chars[..at].iter().copied().chain(text.chars()).chain(chars[end..].iter().copied()).collect();
        if let Ok(spec) = from_toml(&wounded) {
            assert!(spec.refusals().is_empty());
        }
    });
}

/// Values that have been trouble somewhere.
fn trouble() -> impl Strategy<Value = Value> {
    let numbers = prop_oneof![
        Just(0.0),
        Just(-0.0),
        Just(-1.0),
        Just(1e308),
        Just(-1e308),
        Just(5e-324),
        Just(0.5),
        any::<f64>()
    ];
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
        (0_u32..32).prop_map(|bit| Value::from(1_u32 << bit)),
        Just(Value::from(u32::MAX)),
        numbers.prop_map(|n| serde_json::Number::from_f64(n).map_or(Value::Null, Value::Number)),
        ".{0,60}".prop_map(Value::from),
        Just(Value::Array(vec![])),
        Just(serde_json::json!([{}])),
        Just(serde_json::json!({ "name": "counter", "turns": u32::MAX })),
        Just(serde_json::json!({ "kind": "scripted", "more": 1 })),
    ]
}

/// Replaces the value that is the `index`-th among all.
fn replace(value: &mut Value, index: &mut usize, with: &Value) {
    if *index == 0 {
        *value = with.clone();
    }
    *index = index.wrapping_sub(1);
    match value {
        Value::Object(fields) => fields.values_mut().for_each(|value| replace(value, index, with)),
        Value::Array(values) => values.iter_mut().for_each(|value| replace(value, index, with)),
        _ => {}
    }
}

#[test]
fn run_files_with_wrong_values_are_refused_or_make_sense() {
    let sound = serde_json::to_value(run_spec()).unwrap();
    fuzz(&(0..60_usize, trouble()), |(mut index, with)| {
        let mut file = sound.clone();
        replace(&mut file, &mut index, &with);
        read(&serde_json::to_vec(&file).unwrap());
    });
}
