//! Draws whose unlikely tokens are cut off, and the probabilities that are reported for them.

use millrace_policy::random::Stream;
use millrace_schemas::generate::{Finish, Sampling};
use millrace_schemas::submit::Algorithm;
use millrace_torch::{Draw, TorchTrainer, draw};
use tch::{Kind, Tensor};

use crate::forward::{decoder, whole};
use crate::support::{Shape, engine, initial, sampled_batch, step, task, tokens, turns};

/// The probabilities left of a row of logits, by the book: sort, then cut.
fn left(logits: &[f64], draw: &Draw) -> Vec<f64> {
    let scaled: Vec<f64> = logits.iter().map(|logit| logit / draw.temperature).collect();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| scaled[b].total_cmp(&scaled[a]));
    if draw.top_k > 0 {
        order.truncate(draw.top_k as usize);
    }
    let sum: f64 = order.iter().map(|&token| scaled[token].exp()).sum();
    let (mut before, mut kept) = (0.0, Vec::new());
    for &token in &order {
        if before < draw.top_p {
            kept.push(token);
        }
        before += scaled[token].exp() / sum;
    }
    let most = scaled[order[0]];
    kept.retain(|&token| (scaled[token] - most).exp() >= draw.min_p);
    let sum: f64 = kept.iter().map(|&token| scaled[token].exp()).sum();
    let mut probabilities = vec![0.0; logits.len()];
    kept.iter().for_each(|&token| probabilities[token] = scaled[token].exp() / sum);
    probabilities
}

#[test]
fn only_what_is_likely_is_drawn_and_told_its_probability() {
    let mut random = Stream::new(3);
    // More than a chunk of a vocabulary, and not a multiple of one; nearly even rows have large
    // nuclei.
    for (vocabulary, spread) in [(40, 3.0), (1500, 6.0), (1500, 0.2)] {
        let rows: Vec<f64> = (0..vocabulary).map(|_| f64::from((spread * random.unit()) as f32)).collect();
        let cuts =
            [(0.7, 0, 0.0), (1.0, 5, 0.0), (1.0, 0, 0.3), (0.5, 20, 0.1), (0.9, 600, 0.0), (1.0, 0, 0.0)];
        let draws: Vec<Draw> = (0..600)
            .map(|seed| {
                let (top_p, top_k, min_p) = cuts[seed % cuts.len()];
                let temperature = if seed % 2 == 0 { 1.0 } else { 0.7 };
                Draw { top_p, top_k, min_p, ..Draw::at(temperature, seed as u64, 5) }
            })
            .collect();
        let logits = Tensor::from_slice(&rows).to_kind(Kind::Float).unsqueeze(0);
        let uncut = [1.0, 0.7].map(|temperature| (&logits / temperature).log_softmax(-1, Kind::Double));
        for (how, drawn) in draws.iter().zip(draw(&logits.expand([600, vocabulary], false), &draws)) {
            let probability = left(&rows, how)[drawn.token as usize];
            assert!(probability > 0.0, "{how:?} drew {drawn:?}");
            assert!((f64::from(drawn.logprob) - probability.ln()).abs() < 1e-5, "{how:?} {drawn:?}");
            let uncut = &uncut[usize::from(how.temperature < 1.0)];
            let uncut = uncut.double_value(&[0, i64::from(drawn.token)]);
            assert!((f64::from(drawn.uncut_logprob) - uncut).abs() < 1e-5, "{how:?} {drawn:?}");
        }
    }
}

#[test]
fn draws_of_a_large_vocabulary_follow_the_distribution() {
    // 2,000 tokens by their last digit: nine degrees of freedom, one in 10,000 above 33.7.
    let mut random = Stream::new(4);
    let rows: Vec<f32> = (0..2_000).map(|_| (4.0 * random.unit()) as f32).collect();
    let logits = Tensor::from_slice(&rows).unsqueeze(0);
    let draws: Vec<Draw> = (0..10_000).map(|seed| Draw::at(1.0, seed, 0)).collect();
    let mut counts = [0.0; 10];
    for rows in draws.chunks(500) {
        for drawn in draw(&logits.expand([500, 2_000], false), rows) {
            counts[drawn.token as usize % 10] += 1.0;
        }
    }
    let probabilities = Vec::<f64>::try_from(logits.softmax(-1, Kind::Double).view([-1])).unwrap();
    let pearson: f64 = (0..10)
        .map(|digit| {
            let expected: f64 = probabilities.iter().skip(digit).step_by(10).sum::<f64>() * 10_000.0;
            (counts[digit] - expected).powi(2) / expected
        })
        .sum();
    assert!(pearson < 33.7, "pearson={pearson}");
}

#[test]
fn a_turn_tells_its_uncut_probabilities_where_they_differ() {
    let decoder = decoder(1);
    let samplings = [
        Sampling::at(1.0),
        Sampling::at(0.0),
        Sampling::at(0.7),
        Sampling { top_p: 0.6, ..Sampling::at(1.0) },
        Sampling { top_k: 3, ..Sampling::at(0.6) },
        Sampling { min_p: 0.1, sample_below: Some(9), ..Sampling::at(0.6) },
        Sampling { sample_below: Some(9), ..Sampling::at(1.0) },
    ];
    let tasks: Vec<_> = samplings
        .iter()
        .enumerate()
        .map(|(seed, sampling)| {
            let mut task = task(tokens(9, seed as u64), 6, seed as u64);
            task.sampling = sampling.clone();
            task
        })
        .collect();
    for (task, done) in tasks.iter().zip(turns(&mut engine(&initial(1)), tasks.clone())) {
        let cuts = task.sampling.cuts();
        assert_eq!(done.uncut_logprobs.len(), if cuts { 6 } else { 0 });
        done.check().unwrap();
        let told = if cuts { &done.uncut_logprobs } else { &done.logprobs };
        let all = [task.context.clone(), done.tokens.clone()].concat();
        let temperature = if task.sampling.temperature == 0.0 { 1.0 } else { task.sampling.temperature };
        let below = task.sampling.sample_below.map_or(32, i64::from);
        let expected = whole(&decoder, &all).narrow(1, 0, below) / temperature;
        let expected = expected.log_softmax(-1, Kind::Double);
        for (index, &token) in done.tokens.iter().enumerate() {
            let row = (task.context.len() + index - 1) as i64;
            let off = f64::from(told[index]) - expected.double_value(&[row, i64::from(token)]);
            assert!(off.abs() < 1e-5, "{:?} is off by {off}", task.sampling);
        }
    }
}

/// Trainer and engine use the same distribution, at any temperature and restriction, with and
/// without cuts: an unchanged policy has the ratio 1 on each sampled token.
#[test]
fn on_policy_ratios_are_one_with_and_without_cuts() {
    let weights = initial(1);
    let cut = Sampling { top_p: 0.7, ..Sampling::at(1.0) };
    for sampling in [
        Sampling::at(1.0),
        cut.clone(),
        Sampling { temperature: 0.6, ..cut.clone() },
        Sampling { temperature: 0.6, top_k: 4, sample_below: Some(20), ..cut.clone() },
        Sampling { temperature: 1.4, top_p: 1.0, min_p: 0.2, ..cut },
    ] {
        let shape = Shape { turns: 2, observation: 5, new: 4, below: sampling.sample_below };
        let mut batch = sampled_batch(&weights, 2, 4, shape, 1);
        batch.temperature = sampling.temperature;
        let mut engine = engine(&weights);
        for rollout in batch.groups.iter_mut().flat_map(|group| &mut group.rollouts) {
            for turn in &mut rollout.turns {
                let at = turn.at as usize;
                let mut task = task(rollout.tokens[..at].to_vec(), 4, at as u64);
                task.sampling = sampling.clone();
                let done = turns(&mut engine, vec![task]).remove(0);
                rollout.tokens[at..at + 4].copy_from_slice(&done.tokens);
                turn.logprobs = if sampling.cuts() { done.uncut_logprobs } else { done.logprobs };
            }
        }
        let algorithm = Algorithm { epochs: 1, ..Algorithm::default() };
        let trained = step(&mut TorchTrainer::new(), &weights, &batch, &algorithm).unwrap();
        let off = trained.metrics["logprob_abs"];
        assert!(off < 1e-5, "{sampling:?}: off by {off}");
    }
}

/// A vocabulary of 32 fragments of text, some of which together make a stop string.
fn tokenizer() -> Vec<u8> {
    let piece = |id: u32| match id % 4 {
        0 => format!("a{id}"),
        1 => "xST".to_owned() + &id.to_string(),
        2 => format!("ST{id}"),
        _ => format!("OPy{id}"),
    };
    let vocabulary: serde_json::Map<String, serde_json::Value> =
        (0..32).map(|id| (piece(id), id.into())).collect();
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "a0"},
    });
    serde_json::to_vec(&json).unwrap()
}

#[test]
fn a_stop_string_ends_a_turn_with_the_token_that_completes_it() {
    let mut weights = initial(1);
    weights.files.insert("tokenizer.json".into(), tokenizer().into());
    let text = |tokens: &[u32]| -> String {
        let file = |name: &str| (name == "tokenizer.json").then(|| weights.files["tokenizer.json"].clone());
        millrace_policy::text_codec::Codec::read(file).unwrap().decode(tokens, true).unwrap()
    };
    let free = turns(&mut engine(&weights), vec![task(tokens(12, 5), 60, 9)]).remove(0);
    // From the middle of one token to the middle of another.
    for at in [3, 17, 40] {
        let around = text(&free.tokens[at..at + 3]);
        let first = text(&free.tokens[at..=at]);
        let stop = around[first.len() - 1..around.len() - 1].to_owned();
        let expected = (1..=60).find(|&count| text(&free.tokens[..count]).contains(&stop)).unwrap();
        let mut stopping = task(tokens(12, 5), 60, 9);
        stopping.sampling.stop_strings = vec!["never".to_owned(), stop];
        let done = turns(&mut engine(&weights), vec![stopping]).remove(0);
        assert_eq!((done.finish, &done.tokens[..]), (Finish::Stop, &free.tokens[..expected]));
    }
    // Without a tokenizer there is no text.
    let mut stopping = task(tokens(12, 5), 60, 9);
    stopping.sampling.stop_strings = vec!["x".to_owned()];
    let mut engine = engine(&initial(1));
    millrace_policy::Engine::admit(&mut engine, crate::support::request(0, stopping));
    let refused = crate::support::run(&mut engine, 1).into_values().next().unwrap().unwrap_err();
    assert!(refused.to_string().contains("tokenizer.json"), "{refused}");
}

#[test]
fn the_models_own_end_tokens_end_a_turn() {
    let mut weights = initial(1);
    let free = turns(&mut engine(&weights), vec![task(tokens(12, 5), 50, 9)]).remove(0);
    let end = free.tokens[10];
    let first = free.tokens.iter().position(|&token| token == end).unwrap();
    for json in [format!(r#"{{"eos_token_id": {end}}}"#), format!(r#"{{"eos_token_id": [99, {end}]}}"#)] {
        weights.files.insert("generation_config.json".into(), json.into());
        let done = turns(&mut engine(&weights), vec![task(tokens(12, 5), 50, 9)]).remove(0);
        assert_eq!((done.finish, &done.tokens[..]), (Finish::Stop, &free.tokens[..=first]));
    }
}
