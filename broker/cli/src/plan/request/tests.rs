use millrace_schemas::submit::from_toml;

use super::*;

fn spec() -> RunSpec {
    let text = r#"
        name = "planned"
        steps = 10
        model = { kind = "scripted" }
        environment = { name = "counter", turns = 4 }
        [rollout]
        groups_per_step = 16
        group_size = 4
        max_new_tokens = 512
        [algorithm]
        epochs = 2
    "#;
    from_toml(text).unwrap()
}

fn given() -> Latencies {
    Latencies {
        slots: Some(8),
        slot_tokens_per_s: Some(20.0),
        tokens: Some(100.0),
        train_sample_s: Some(0.5),
        ..Latencies::default()
    }
}

fn question() -> Question {
    Question { gpus: 4, alphas: vec![0.0, 1.0], seed: 1 }
}

fn refused(given: &Latencies) -> String {
    assemble(&spec(), given, None, question()).unwrap_err().to_string()
}

#[test]
fn what_is_given_becomes_the_request_and_every_value_says_where_it_is_from() {
    let request = assemble(&spec(), &given(), None, question()).unwrap();
    assert_eq!((request.groups, request.group_size, request.slots), (16, 4, 8));
    // 64 rollouts, two epochs of half a second.
    assert_eq!(request.train_gpu_s, 64.0);
    assert_eq!(request.lone_tokens_per_s, 20.0);
    for words in
        ["8 sequences at once (given)", "20 tokens/s (assumed)", "turns of a rollout: 1 each (assumed)"]
    {
        assert!(request.assumptions.iter().any(|line| line.contains(words)), "{words}: {request:#?}");
    }
    let by_token = Latencies { train_sample_s: None, train_token_s: Some(0.01), turns: Some(3.0), ..given() };
    assert_eq!(
        assemble(&spec(), &by_token, None, question()).unwrap().train_gpu_s,
        64.0 * 2.0 * 0.01 * 300.0
    );
}

#[test]
fn a_mean_is_given_as_the_median_that_has_it() {
    let with_tail = Latencies { tokens_sigma: Some(1.0), ..given() };
    let request = assemble(&spec(), &with_tail, None, question()).unwrap();
    let Spread::LogNormal { median, sigma, most } = request.tokens else { panic!("{request:?}") };
    assert!((median - 100.0 / 0.5_f64.exp()).abs() < 1e-9, "{median}");
    assert_eq!((sigma, most), (1.0, 512.0));
}

#[test]
fn everything_that_is_missing_is_named_at_once_with_its_remedy() {
    let said = refused(&Latencies::default());
    for field in
        ["slots = not given", "slot_tokens_per_s = not given", "tokens = not given", "train_sample_s = not"]
    {
        assert!(said.contains(field), "{field}: {said}");
    }
    assert!(said.contains("--slot-tokens-per-s X, a line of --latencies FILE, or --measured RUN"), "{said}");
}

#[test]
fn what_cannot_be_is_refused_with_field_value_and_remedy() {
    let wrong = [
        (Latencies { slot_tokens_per_s: Some(f64::NAN), ..given() }, "slot_tokens_per_s = NaN: give tokens"),
        (Latencies { env_s: Some(-1.0), ..given() }, "env_s.median = -1: choose 0"),
        (Latencies { train_sample_s: Some(f64::INFINITY), ..given() }, "train_gpu_s = inf: give seconds"),
        (
            Latencies { tokens: Some(600.0), ..given() },
            "tokens = 600: a turn has at most rollout.max_new_tokens = 512",
        ),
        (Latencies { least_trainers: Some(4), ..given() }, "least_trainers = 4: choose 1 to 3"),
        (
            Latencies { train_token_s: Some(1.0), ..given() },
            "train_sample_s = 0.5: train_token_s is given too",
        ),
        (Latencies { slots: Some(0), ..given() }, "slots = 0: "),
        (
            Latencies { tokens: Some(900.0), tokens_sigma: Some(1.0), ..given() },
            "tokens = 900: half of the turns have 545.9 or more, and a turn has at most",
        ),
        (Latencies { tokens_median: Some(513.0), ..given() }, "tokens_median = 513: a turn has at most"),
    ];
    for (given, said) in wrong {
        let refusal = refused(&given);
        assert!(refusal.starts_with("nothing can be planned:\n"), "{refusal}");
        assert!(refusal.contains(said), "{said}: {refusal}");
    }
}

#[test]
fn what_is_missing_and_what_is_wrong_have_a_headline_each() {
    let said = refused(&Latencies { tokens: Some(600.0), ..Latencies::default() });
    let (missing, wrong) = said.split_once("\nnothing can be planned:\n  ").unwrap();
    assert!(missing.starts_with("the plan lacks latencies:\n  slots = not given"), "{said}");
    assert!(wrong.starts_with("tokens = 600: ") && !wrong.contains("not given"), "{said}");
}

/// The simulator would have panicked: its clock holds no such time.
#[test]
fn a_pace_at_which_a_turn_never_ends_is_refused() {
    let slow = |pace| Latencies { slot_tokens_per_s: Some(pace), ..given() };
    let said = refused(&slow(1e-300));
    let expected = "slot_tokens_per_s = 1e-300: a turn of 100 tokens would take more than 1e9 s; give tokens a second, \
                    at least 1e-7";
    assert!(said.contains(expected), "{said}");
    assert!(assemble(&spec(), &slow(1.1e-7), None, question()).is_ok());
    // The longest turn counts, not the median.
    let tail = Latencies { tokens_sigma: Some(1.0), ..slow(1.1e-7) };
    assert!(refused(&tail).contains("a turn of 512 tokens"), "{}", refused(&tail));
}

#[test]
fn numbers_are_short() {
    assert_eq!(
        [0.0, 12_345.6, 1.5, 0.000_123_456, 100.0].map(short),
        ["0", "12346", "1.5", "0.0001235", "100"]
    );
}
