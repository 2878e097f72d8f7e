use super::*;

fn weights(version: u64, record: Option<&[f32]>) -> ProbedWeights {
    let blob = BlobRef::of(&version.to_le_bytes());
    ProbedWeights {
        version: PolicyVersion(version),
        tokens: vec![1, 2, 3],
        record: record.map(<[f32]>::to_vec),
        files: [("model.safetensors".to_owned(), blob)].into(),
    }
}

fn measured(version: u64, record: Option<&[f32]>, logprobs: &[f32]) -> Measured {
    Measured { weights: weights(version, record), logprobs: logprobs.to_vec(), nearest: None }
}

const OLD: [f32; 2] = [-3.0, -2.0];
const NEW: [f32; 2] = [-2.9, -2.1];

#[test]
fn a_version_must_match_its_record() {
    let target = weights(2, Some(&NEW));
    prove(None, &target, &[-2.91, -2.1], true, 0.02).unwrap();
    let error = prove(None, &target, &OLD, true, 0.02).unwrap_err();
    assert!(matches!(&error, ServerError::OtherWeights(message) if message.contains("recorded")), "{error}");
    // A server that does not measure what trainers record needs no match.
    prove(None, &target, &OLD, false, 0.02).unwrap();
    assert!(prove(None, &target, &[-2.9], true, 0.02).is_err(), "another length");
}

#[test]
fn an_ineffective_reload_is_found_without_a_record() {
    let before = measured(1, None, &OLD);
    let error = prove(Some(&before), &weights(2, None), &OLD, true, 10.0).unwrap_err();
    assert!(error.to_string().contains("bit for bit"), "{error}");
    prove(Some(&before), &weights(2, None), &[-3.0, -2.000_001], true, 0.0).unwrap();
    // The same files again may well give the same.
    let mut again = weights(2, None);
    again.files = before.weights.files.clone();
    prove(Some(&before), &again, &OLD, true, 0.0).unwrap();
    assert!(prove(Some(&before), &again, &NEW, true, 0.02).is_err());
}

/// A step in which all rewards are equal has no gradient. Its version has other files and the same weights.
#[test]
fn a_server_need_not_move_where_the_trainer_did_not() {
    let before = measured(1, Some(&OLD), &OLD);
    prove(Some(&before), &weights(2, Some(&OLD)), &OLD, true, 1e-4).unwrap();
    prove(Some(&before), &weights(2, Some(&[-3.0, -2.000_000_2])), &OLD, true, 1e-4).unwrap();
    // Nor one that does not measure what trainers record.
    let before = measured(1, Some(&OLD), &NEW);
    prove(Some(&before), &weights(2, Some(&OLD)), &NEW, false, 1e-4).unwrap();
    // Where the trainer moved a little, it must.
    for comparable in [true, false] {
        let before = measured(1, Some(&OLD), &OLD);
        let moved = weights(2, Some(&[-3.0, -2.000_05]));
        let error = prove(Some(&before), &moved, &OLD, comparable, 1e-4).unwrap_err();
        assert!(error.to_string().contains("bit for bit"), "{error}");
    }
}

#[test]
fn the_server_must_move_as_the_trainer_did() {
    // It is off by 0.05 at all times, as one that computes in bf16, and the change is 0.1.
    let before = measured(1, Some(&OLD), &[-3.05, -2.05]);
    let target = weights(2, Some(&NEW));
    prove(Some(&before), &target, &[-2.95, -2.15], true, 0.06).unwrap();
    // It moved a little, and not to there: within the tolerance of what is recorded all the same.
    let error = prove(Some(&before), &target, &[-2.999, -2.05], true, 0.09).unwrap_err();
    assert!(error.to_string().contains("of the change"), "{error}");
}

#[test]
fn a_server_does_not_drift_from_its_records() {
    // In f32: 1e-6 off at first, then as far as one whose packed output layer stayed old.
    let off = |by: f32| NEW.map(|logprob| logprob + by);
    let first = prove(None, &weights(2, Some(&NEW)), &off(1e-6), true, 0.01).unwrap();
    let again = ProbedWeights { version: PolicyVersion(3), ..weights(3, Some(&NEW)) };
    let error = prove(Some(&first), &again, &off(1.7e-3), true, 0.01).unwrap_err();
    assert!(error.to_string().contains("a part of its weights is old"), "{error}");
    // What rounding explains is no drift, and the nearest is remembered.
    let second = prove(Some(&first), &again, &off(9e-5), true, 0.01).unwrap();
    assert_eq!(second.nearest, first.nearest);
    // In bf16: as far off as always, to ten times.
    let first = prove(None, &weights(2, Some(&NEW)), &off(0.02), true, 0.2).unwrap();
    prove(Some(&first), &again, &off(0.15), true, 0.2).unwrap();
}

#[test]
fn a_flatter_distribution_is_detected() {
    let say = |values: &[f64]| -> Vec<(String, f64)> {
        values.iter().enumerate().map(|(token, value)| (token.to_string(), *value)).collect()
    };
    let one = say(&[-0.5, -1.5, -2.5]);
    assert!(is_scaled(&one, &say(&[-0.8, -1.3, -1.8])));
    assert!(!is_scaled(&one, &one));
    assert!(!is_scaled(&say(&[-1.0, -1.0]), &say(&[-1.0, -1.0])), "nothing is seen, nothing is claimed");
}
