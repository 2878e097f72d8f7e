use millrace_schemas::RolloutId;

use super::*;

#[test]
fn right_answers_add_up_to_one() {
    let counter = Counter { turns: 5 };
    for wrong_at in [None, Some(2)] {
        let mut now = counter.reset(Split::Train, 4).unwrap();
        let mut sum = 0.0;
        for turn in 0..5 {
            let answer = (now.observation[0] + 1 + u32::from(wrong_at == Some(turn))) % NUMBERS;
            now = counter.step(&now.state, &[answer]).unwrap();
            assert!(now.valid);
            sum += now.reward;
        }
        assert!(now.done);
        assert_eq!(now.success, wrong_at.is_none());
        let right = if wrong_at.is_none() { 1.0 } else { 0.8 };
        assert!((sum - right).abs() < 1e-12, "{sum}");
    }
}

#[test]
fn both_splits_have_numbers_and_share_none() {
    let counter = Counter { turns: 1 };
    let numbers = |split| -> std::collections::BTreeSet<u32> {
        (0..1000).map(|seed| counter.reset(split, seed).unwrap().observation[0]).collect()
    };
    let (train, held_out) = (numbers(Split::Train), numbers(Split::HeldOut));
    assert!(train.is_disjoint(&held_out));
    assert_eq!(train.len() + held_out.len(), 128);
}

#[test]
fn turns_take_as_long_as_the_run_file_says() {
    let task = |group| TaskKey::EnvStep { rollout: RolloutId { group, index: 0, attempt: 0 }, turn: 1 };
    let latency = Latency { mean_ms: 1_000.0, deviation_ms: 500.0 };
    let drawn: Vec<f64> = (0..4_000).map(|group| drawn(latency, &task(group)).as_secs_f64()).collect();
    let mean = drawn.iter().sum::<f64>() / 4_000.0;
    let deviation = (drawn.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / 4_000.0).sqrt();
    // Of N(1, 0.5) cut at 0: mean 1.004, deviation 0.491; the errors of the means are a hundredth
    // of that.
    assert!((mean - 1.004).abs() < 0.04 && (deviation - 0.491).abs() < 0.03, "{mean} {deviation}");
    assert!(drawn.iter().all(|one| *one >= 0.0) && drawn.contains(&0.0));
    assert_eq!(super::drawn(Latency::default(), &task(1)), Duration::ZERO);
    assert_eq!(super::drawn(latency, &task(3)), super::drawn(latency, &task(3)));
}
