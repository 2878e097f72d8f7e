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
