//! Sampling: a turn depends on nothing but its context, its seed and the weights.

use millrace_policy::{Engine, PolicyError, Ticket};
use millrace_schemas::generate::{Finish, GenerateDone, GenerateTask, Sampling};
use millrace_torch::{Draw, EngineSettings, TorchEngine, draw, uniform};
use tch::{Kind, Tensor};

use crate::forward::{decoder, whole};
use crate::support::{engine, initial, request, run, task, tokens, turns};

/// Tasks of unlike lengths.
fn tasks() -> Vec<GenerateTask> {
    [5, 40, 1, 17, 90, 33, 6, 2]
        .iter()
        .enumerate()
        .map(|(i, &n)| task(tokens(n, n as u64), 6, i as u64))
        .collect()
}

fn assert_same_turns(ours: &[GenerateDone], theirs: &[GenerateDone]) {
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert_eq!(ours.tokens, theirs.tokens);
        for (a, b) in ours.logprobs.iter().zip(&theirs.logprobs) {
            assert!((a - b).abs() < 1e-5, "{a} instead of {b}");
        }
    }
}

fn alone(tasks: Vec<GenerateTask>) -> Vec<GenerateDone> {
    let weights = initial(1);
    tasks.into_iter().flat_map(|task| turns(&mut engine(&weights), vec![task])).collect()
}

#[test]
fn a_batch_gives_what_each_request_gets_alone() {
    let together = turns(&mut engine(&initial(1)), tasks());
    assert_same_turns(&together, &alone(tasks()));
    assert!(together.iter().all(|done| done.check().is_ok() && done.finish == Finish::Length));
    // Seeds matter: with all of them alike, the two short contexts would not differ from one
    // another either.
    assert_ne!(together[0].tokens, together[6].tokens);
}

#[test]
fn requests_join_and_leave_between_steps() {
    let mut engine = engine(&initial(1));
    let mut results = Vec::new();
    for (index, task) in tasks().into_iter().enumerate() {
        engine.admit(request(index as u32, task));
        results.extend(engine.step().unwrap());
    }
    let left = 8 - results.len();
    assert!((1..8).contains(&left), "left={left}");
    let mut results: Vec<(Ticket, _)> = results.into_iter().map(|one| (one.ticket, one.result)).collect();
    results.extend(run(&mut engine, left));
    results.sort_by_key(|(ticket, _)| *ticket);
    let joined: Vec<GenerateDone> = results.into_iter().map(|(_, result)| result.unwrap()).collect();
    assert_same_turns(&joined, &alone(tasks()));
}

#[test]
fn little_memory_and_small_forwards_change_nothing_but_the_time() {
    let weights = initial(1);
    let expected = alone(tasks());
    for settings in [
        EngineSettings { sequences: 2, ..EngineSettings::default() },
        EngineSettings { forward_tokens: 7, ..EngineSettings::default() },
        EngineSettings { prefill_tokens: Some(5), ..EngineSettings::default() },
        // Room for the longest alone: the others are pre-empted again and again.
        EngineSettings { cache_bytes: Some(1), ..EngineSettings::default() },
    ] {
        let mut engine = TorchEngine::new(&weights, settings).unwrap();
        assert_same_turns(&turns(&mut engine, tasks()), &expected);
        // Once more, when the cache has grown and has content.
        assert_same_turns(&turns(&mut engine, tasks()), &expected);
    }
}

#[test]
fn log_probabilities_are_those_of_the_forward_of_training() {
    let decoder = decoder(1);
    for temperature in [1.0, 0.6, 1.7] {
        let mut tasks = tasks();
        for task in &mut tasks {
            task.sampling.temperature = temperature;
        }
        for (task, done) in tasks.clone().iter().zip(turns(&mut engine(&initial(1)), tasks)) {
            let all = [task.context.clone(), done.tokens.clone()].concat();
            let logprobs = (whole(&decoder, &all) / temperature).log_softmax(-1, Kind::Float);
            for (index, &token) in done.tokens.iter().enumerate() {
                let row = (task.context.len() + index - 1) as i64;
                let expected = logprobs.double_value(&[row, i64::from(token)]);
                let off = (f64::from(done.logprobs[index]) - expected).abs();
                assert!(off < 1e-5, "temperature={temperature} off by {off}");
            }
        }
    }
}

#[test]
fn temperature_zero_takes_the_likeliest_and_says_its_probability_at_one() {
    let decoder = decoder(1);
    let mut greedy = task(tokens(12, 5), 4, 9);
    greedy.sampling.temperature = 0.0;
    // Beside a request that is sampled.
    let done = turns(&mut engine(&initial(1)), vec![greedy.clone(), task(tokens(3, 1), 4, 2)]).remove(0);
    let mut all = greedy.context;
    for (&token, &logprob) in done.tokens.iter().zip(&done.logprobs) {
        let row = whole(&decoder, &all).get(all.len() as i64 - 1);
        assert_eq!(i64::from(token), i64::try_from(row.argmax(-1, false)).unwrap());
        let expected = row.log_softmax(-1, Kind::Float).double_value(&[i64::from(token)]);
        assert!((f64::from(logprob) - expected).abs() < 1e-5);
        all.push(token);
    }
}

#[test]
fn only_allowed_tokens_are_drawn_and_probabilities_are_over_those_alone() {
    let decoder = decoder(1);
    let mut tasks = tasks();
    // Side by side with requests that may draw everything, and with a likeliest token.
    for (index, task) in tasks.iter_mut().enumerate().filter(|(index, _)| index % 2 == 0) {
        task.sampling.sample_below = Some(4);
        task.sampling.temperature = if index == 4 { 0.0 } else { 1.0 };
    }
    let done = turns(&mut engine(&initial(1)), tasks.clone());
    assert!(done.iter().skip(1).step_by(2).flat_map(|done| &done.tokens).any(|&token| token >= 4));
    for (task, done) in tasks.iter().zip(&done).step_by(2) {
        assert!(done.tokens.iter().all(|&token| token < 4), "{:?}", done.tokens);
        let all = [task.context.clone(), done.tokens.clone()].concat();
        let logprobs = whole(&decoder, &all).narrow(1, 0, 4).log_softmax(-1, Kind::Float);
        for (index, &token) in done.tokens.iter().enumerate() {
            let row = (task.context.len() + index - 1) as i64;
            let off = f64::from(done.logprobs[index]) - logprobs.double_value(&[row, i64::from(token)]);
            assert!(off.abs() < 1e-5, "off by {off}");
        }
    }
}

#[test]
fn stop_tokens_end_a_turn_and_belong_to_it() {
    let mut stopping = task(tokens(12, 5), 50, 9);
    let free = turns(&mut engine(&initial(1)), vec![stopping.clone()]).remove(0);
    let stop = free.tokens[10];
    let first = free.tokens.iter().position(|&token| token == stop).unwrap();
    stopping.sampling.stop_tokens = vec![stop];
    let done = turns(&mut engine(&initial(1)), vec![stopping]).remove(0);
    assert_eq!((done.finish, &done.tokens[..]), (Finish::Stop, &free.tokens[..=first]));
}

#[test]
fn draws_follow_the_distribution() {
    // Pearson's statistic over 20,000 draws from one row of 8 classes: 7 degrees of freedom, so
    // that above 29.9 lies one draw of seeds in 10,000.
    let n = 20_000_u64;
    let logits = Tensor::from_slice(&[0.0_f32, 1.0, 2.0, -1.0, 0.5, -3.0, f32::NEG_INFINITY, 1.5]);
    for temperature in [1.0, 0.5] {
        let rows = logits.unsqueeze(0).expand([n as i64, 8], false);
        let draws: Vec<Draw> = (0..n).map(|seed| Draw::at(temperature, seed, 17)).collect();
        let mut counts = [0.0; 8];
        for drawn in draw(&rows, &draws) {
            counts[drawn.token as usize] += 1.0;
        }
        let expected = Vec::<f64>::try_from((&logits / temperature).softmax(-1, Kind::Double)).unwrap();
        assert_eq!(counts[6], 0.0, "a token without probability was drawn");
        let terms = counts.iter().zip(&expected).filter(|(_, p)| **p > 0.0);
        let pearson: f64 = terms.map(|(c, p)| (c - p * n as f64).powi(2) / (p * n as f64)).sum();
        assert!(pearson < 29.9, "temperature={temperature} pearson={pearson}");
    }
}

#[test]
fn random_numbers_are_even_over_seeds_and_over_positions() {
    let n = 100_000_u64;
    for at in [|i: u64| uniform(i, 3), |i: u64| uniform(3, i), |i: u64| uniform(i, i)] {
        let (mut mean, mut bins) = (0.0, [0.0; 16]);
        for i in 0..n {
            let x = at(i);
            mean += x / n as f64;
            bins[(x * 16.0) as usize] += 1.0;
        }
        // Five standard errors of the mean, and 15 degrees of freedom at one in 10,000.
        assert!((mean - 0.5).abs() < 5.0 * (1.0 / 12.0 / n as f64).sqrt(), "mean={mean}");
        let even = n as f64 / 16.0;
        let pearson: f64 = bins.iter().map(|c| (c - even).powi(2) / even).sum();
        assert!(pearson < 44.3, "pearson={pearson}");
    }
}

#[test]
fn an_impossible_request_fails_with_its_reason_and_hurts_no_other() {
    let mut engine = engine(&initial(1));
    let mut hot = task(tokens(3, 1), 1, 1);
    hot.sampling.temperature = f64::NAN;
    let bad = [
        (task(vec![1, 32, 2], 1, 1), "token=32"),
        (task(tokens(256, 1), 1, 1), "256 tokens"),
        (task(tokens(10, 1), u32::MAX, 1), "256 tokens"),
        (task(vec![], 1, 1), "context=0"),
        (task(tokens(3, 1), 0, 1), "max_new_tokens=0"),
        (hot, "temperature=NaN"),
    ];
    let good = task(tokens(10, 1), 3, 4);
    engine.admit(request(100, good.clone()));
    for (index, (task, _)) in bad.iter().enumerate() {
        engine.admit(request(index as u32, task.clone()));
    }
    let mut results = run(&mut engine, bad.len() + 1);
    for (index, (_, why)) in bad.iter().enumerate() {
        let result = &results[&Ticket(index as u64)];
        assert!(matches!(result, Err(PolicyError::Impossible(said)) if said.contains(why)), "{result:?}");
    }
    assert_same_turns(&[results.remove(&Ticket(100)).unwrap().unwrap()], &alone(vec![good]));
}

#[test]
fn an_abandoned_request_gives_no_result() {
    let mut engine =
        TorchEngine::new(&initial(1), EngineSettings { sequences: 1, ..EngineSettings::default() }).unwrap();
    let [a, b, c] = [1, 2, 3].map(|seed| task(tokens(10, seed), 20, seed));
    for (index, task) in [a, b, c.clone()].into_iter().enumerate() {
        engine.admit(request(index as u32, task));
    }
    assert!(engine.step().unwrap().is_empty());
    // The first is in prefill, the second waits.
    for (ticket, sampled) in [(0, Some(1)), (1, Some(0)), (77, None)] {
        assert_eq!(engine.abandon(Ticket(ticket)).map(|done| done.tokens.len()), sampled);
    }
    let results = run(&mut engine, 1);
    assert_same_turns(&[results[&Ticket(2)].clone().unwrap()], &alone(vec![c]));
    assert!(engine.step().unwrap().is_empty());
}

/// Draws depend on the seed and on the position alone: a turn that is handed back after any of its
/// tokens, and continued by another engine, is the turn that one engine samples.
#[test]
fn a_turn_is_the_same_when_another_engine_continues_it() {
    let cut = Sampling { top_p: 0.9, top_k: 12, ..Sampling::at(1.0) };
    for sampling in [Sampling::at(1.0), Sampling::at(0.0), cut] {
        let asked = GenerateTask { sampling, ..task(tokens(10, 3), 9, 5) };
        let whole = alone(vec![asked.clone()]).remove(0);
        for steps in [1, 4, 8] {
            let mut first = engine(&initial(1));
            first.admit(request(0, asked.clone()));
            for _ in 0..steps {
                assert!(first.step().unwrap().is_empty());
            }
            let part = first.abandon(Ticket(0)).unwrap();
            assert_eq!((part.finish, part.tokens.len()), (Finish::Partial, steps));
            let rest = GenerateTask { sampled: Some(Box::new(part)), ..asked.clone() };
            assert_same_turns(std::slice::from_ref(&whole), &alone(vec![rest]));
        }
        let spent = GenerateTask { sampled: Some(Box::new(whole)), ..asked };
        let mut engine = engine(&initial(1));
        engine.admit(request(0, spent));
        let result = &run(&mut engine, 1)[&Ticket(0)];
        assert!(
            matches!(result, Err(PolicyError::Impossible(said)) if said.contains("leaves none")),
            "{result:?}"
        );
    }
}
