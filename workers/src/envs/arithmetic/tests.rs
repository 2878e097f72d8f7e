use std::collections::BTreeSet;

use super::*;

const GAME: Arithmetic<'_> = Arithmetic { operations: &[Operation::Add], largest: 99, max_turns: 2 };

#[test]
fn the_last_number_is_the_answer() {
    let cases: [(&str, Option<i64>); 25] = [
        ("12", Some(12)),
        ("7 + 5 = 12.", Some(12)),
        ("It is 12, I think", Some(12)),
        ("-3", Some(-3)),
        ("it is −3.", Some(-3)),
        ("5-3", Some(3)),
        ("5 - 3", Some(3)),
        ("1,234", Some(1234)),
        ("12, 13", Some(13)),
        ("3.5", None),
        ("12.5", None),
        ("18.00", Some(18)),
        ("It is $1,018.00.", Some(1018)),
        ("-3.0", Some(-3)),
        ("0.5", None),
        (".5", None),
        ("-.5", None),
        ("so...5", Some(5)),
        ("The answer.5", Some(5)),
        ("1.2.3", None),
        ("3.5, so 4.", Some(4)),
        ("**42**\n", Some(42)),
        ("", None),
        ("twelve", None),
        ("99999999999999999999999999", None),
    ];
    for (text, answer) in cases {
        assert_eq!(last_number(text), answer, "{text:?}");
    }
}

#[test]
fn a_right_answer_ends_it_and_a_wrong_one_is_asked_again() {
    let asked = GAME.reset(Split::Train, 3).unwrap();
    let (question, 0) = GAME.open(&asked.state).unwrap() else { panic!("a start state is of turn 0") };
    assert!(asked.text.contains(&format!("{} + {}", question.a, question.b)), "{}", asked.text);
    let right = GAME.step(&asked.state, &format!("It is {}.", question.a + question.b)).unwrap();
    assert!(right.done && right.success && right.valid && right.reward == 1.0 && right.state.is_empty());
    let wrong = GAME.step(&asked.state, "It is -1").unwrap();
    assert!(!wrong.done && !wrong.success && wrong.valid && wrong.reward == 0.0);
    assert!(wrong.text.contains(&question.text()));
    let last = GAME.step(&wrong.state, "who knows").unwrap();
    assert!(last.done && !last.success && !last.valid && last.reward == 0.0);
}

#[test]
fn no_held_out_pair_of_numbers_is_trained_on_in_either_order() {
    let all = [Operation::Add, Operation::Subtract, Operation::Multiply];
    let game = Arithmetic { operations: &all, largest: 30, ..GAME };
    let pairs = |split| {
        let questions =
            (0..2000).map(move |seed| game.open(&game.reset(split, seed).unwrap().state).unwrap().0);
        questions.map(|q| (q.operation as u8, q.a.min(q.b), q.a.max(q.b))).collect::<BTreeSet<_>>()
    };
    let (trained, held_out) = (pairs(Split::Train), pairs(Split::HeldOut));
    assert!(trained.is_disjoint(&held_out));
    assert!(trained.len() > 800 && held_out.len() > 100, "{} and {}", trained.len(), held_out.len());
}

#[test]
fn a_state_of_other_settings_is_refused() {
    let asked = GAME.reset(Split::Train, 3).unwrap();
    let others = [
        Arithmetic { largest: 9, ..GAME },
        Arithmetic { operations: &[Operation::Multiply], ..GAME },
        Arithmetic { max_turns: 0, ..GAME },
    ];
    let mut refused = 0;
    for seed in 0..20 {
        let state = GAME.reset(Split::Train, seed).unwrap().state;
        refused += others.iter().filter(|other| other.step(&state, "1").is_err()).count();
    }
    assert!(refused >= 58, "{refused} of 60: only two numbers up to 9 fit the first");
    let mut damaged = asked.state;
    damaged[4] ^= 1;
    assert!(GAME.step(&damaged, "1").is_err());
}
