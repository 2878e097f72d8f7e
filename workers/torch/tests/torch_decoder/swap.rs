//! The prefix cache, and new weights while requests are in flight.

use millrace_policy::{Engine, LoadedVersion, PolicyError, Ticket, Trainer};
use millrace_schemas::PolicyVersion;
use millrace_schemas::generate::{GenerateDone, GenerateTask, Segment};
use millrace_torch::{EngineSettings, TorchEngine, TorchTrainer};

use crate::support::{engine, initial, load, model, request, run, task, tokens, turns, version};

fn close(ours: &GenerateDone, theirs: &GenerateDone) {
    assert_eq!(ours.tokens, theirs.tokens);
    assert!(near(&ours.logprobs, &theirs.logprobs));
}

fn near(ours: &[f32], theirs: &[f32]) -> bool {
    ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(a, b)| (a - b).abs() < 1e-5)
}

/// Turns of one rollout, each context longer by an observation.
fn play(engine: &mut TorchEngine, rollout: u32, turns: u64) -> Vec<GenerateDone> {
    let mut context = tokens(20, 1);
    (0..turns)
        .map(|turn| {
            engine.admit(request(rollout, task(context.clone(), 3, turn)));
            let done = run(engine, 1).into_values().next().unwrap().unwrap();
            context.extend(&done.tokens);
            context.extend(tokens(7, turn));
            done
        })
        .collect()
}

#[test]
fn a_cached_prefix_gives_what_prefilling_it_again_gives() {
    let weights = initial(1);
    let kept = play(&mut engine(&weights), 5, 4);
    let mut context = tokens(20, 1);
    for (turn, kept) in kept.iter().enumerate() {
        let anew = turns(&mut engine(&weights), vec![task(context.clone(), 3, turn as u64)]).remove(0);
        close(kept, &anew);
        assert_eq!((anew.prefill_tokens, anew.cached_tokens), (context.len() as u32, 0));
        // All but the last token sampled and the observation were cached.
        let new = if turn == 0 { 20 } else { 8 };
        assert_eq!((kept.prefill_tokens, kept.cached_tokens), (new, context.len() as u32 - new));
        context.extend(&kept.tokens);
        context.extend(tokens(7, turn as u64));
    }
}

#[test]
fn only_the_common_prefix_is_reused_when_a_context_changed() {
    let weights = initial(1);
    let mut engine = engine(&weights);
    let context = tokens(30, 1);
    turns(&mut engine, vec![task(context.clone(), 2, 1)]);
    let mut changed = context.clone();
    changed[11] ^= 1;
    let done = turns(&mut engine, vec![task(changed.clone(), 5, 2)]).remove(0);
    assert_eq!((done.prefill_tokens, done.cached_tokens), (19, 11));
    close(&done, &turns(&mut self::engine(&weights), vec![task(changed, 5, 2)])[0]);
    // The very same context again: its last token is computed all the same.
    let again = turns(&mut self::engine(&weights), vec![task(context.clone(), 2, 1)]).remove(0);
    let mut engine = self::engine(&weights);
    turns(&mut engine, vec![task(context.clone(), 2, 1)]);
    let done = turns(&mut engine, vec![task(context, 2, 1)]).remove(0);
    assert_eq!(done.prefill_tokens, 1);
    close(&done, &again);
}

#[test]
fn evicted_blocks_are_never_found_for_other_tokens() {
    // Room for one rollout and a block, and two of them in turn: neither finds more than that of
    // its own tokens, both get the right ones.
    let weights = initial(1);
    let settings = EngineSettings { cache_bytes: Some(1), ..EngineSettings::default() };
    let mut engine = TorchEngine::new(&weights, settings).unwrap();
    let tasks = [1, 2].map(|seed| task(tokens(60, seed), 4, seed));
    let expected = tasks.clone().map(|task| turns(&mut self::engine(&weights), vec![task]).remove(0));
    for which in [0, 1, 0, 1] {
        let done = turns(&mut engine, vec![tasks[which].clone()]).remove(0);
        assert!(done.cached_tokens <= 16, "{}", done.cached_tokens);
        close(&done, &expected[which]);
    }
}

#[test]
fn tokens_carry_their_version() {
    let (old, new) = (initial(1), version(7, &trained(2)));
    let mut engine = engine(&old);
    let tasks: Vec<_> = [4, 20].map(|n| task(tokens(n, n as u64), 6, n as u64)).into();
    for (index, task) in tasks.iter().enumerate() {
        engine.admit(request(index as u32, task.clone()));
    }
    engine.step().unwrap();
    engine.step().unwrap();
    load(&mut engine, &new);
    let results = run(&mut engine, 2);
    for (task, done) in tasks.iter().zip(results.into_values().map(Result::unwrap)) {
        let by = |version, tokens| Segment { version: PolicyVersion(version), tokens };
        assert_eq!(done.segments, [by(0, 2), by(7, 4)]);
        done.check().unwrap();
        // The first two are the old weights', the rest what the new weights give after them from
        // the start.
        let before = turns(&mut self::engine(&old), vec![task.clone()]).remove(0);
        assert_eq!(done.tokens[..2], before.tokens[..2]);
        assert!(near(&done.logprobs[..2], &before.logprobs[..2]));
        let mut rest = task.clone();
        rest.context.extend(&done.tokens[..2]);
        rest.max_new_tokens = 4;
        let after = turns(&mut self::engine(&new), vec![rest]).remove(0);
        assert_eq!(done.tokens[2..], after.tokens);
        assert!(near(&done.logprobs[2..], &after.logprobs));
        assert_ne!(before.tokens[2..], after.tokens, "the weights do not differ enough to tell");
    }
}

#[test]
fn new_weights_clear_the_prefix_cache() {
    let (old, new) = (initial(1), version(1, &trained(2)));
    let mut engine = engine(&old);
    let context = tokens(30, 1);
    turns(&mut engine, vec![task(context.clone(), 2, 1)]);
    load(&mut engine, &new);
    let done = turns(&mut engine, vec![task(context.clone(), 5, 2)]).remove(0);
    assert_eq!(done.cached_tokens, 0);
    close(&done, &turns(&mut self::engine(&new), vec![task(context, 5, 2)])[0]);
}

#[test]
fn an_engine_loads_a_model_of_another_shape() {
    let other = version(1, &TorchTrainer::new().initialise(&model(1, 64, 0.2), 2).unwrap());
    let mut engine = engine(&initial(1));
    let task = task(tokens(10, 1), 9, 3);
    engine.admit(request(0, task));
    engine.step().unwrap();
    load(&mut engine, &other);
    let done = run(&mut engine, 1).remove(&Ticket(0)).unwrap().unwrap();
    assert_eq!(done.segments.iter().map(|s| (s.version.0, s.tokens)).collect::<Vec<_>>(), [(0, 1), (1, 8)]);
}

#[test]
fn weights_that_are_none_are_refused_by_name() {
    let good = initial(1);
    let refused = |version: &LoadedVersion, why: &str| {
        let error = TorchEngine::new(version, EngineSettings::default()).unwrap_err();
        assert!(matches!(&error, PolicyError::Impossible(said) if said.contains(why)), "{error:?}");
    };
    let name = "model.layers.1.mlp.up_proj.weight";
    refused(&crate::files::spoilt(&good, name, f32::NAN), name);
    refused(&crate::files::spoilt(&good, name, f32::INFINITY), name);
    let mut cut = good.clone();
    let whole = cut.files["model.safetensors"].clone();
    cut.files.insert("model.safetensors".into(), whole.slice(..whole.len() - 4));
    refused(&cut, "model.safetensors");
    let mut other = good.clone();
    let three = TorchTrainer::new().initialise(&model(3, 256, 0.2), 1).unwrap();
    other.files.insert("config.json".into(), three.files["config.json"].clone());
    refused(&other, "model.layers.2.input_layernorm.weight");
    other.files.remove("model.safetensors");
    refused(&other, "model.safetensors");
}

fn trained(seed: u64) -> millrace_policy::Trained {
    TorchTrainer::new().initialise(&model(2, 256, 0.2), seed).unwrap()
}

#[test]
fn an_engine_that_left_its_device_for_a_step_samples_what_it_would_have_sampled() {
    let weights = initial(1);
    let mut divided = engine(&weights);
    let begun = task(tokens(30, 1), 12, 1);
    divided.admit(request(0, begun.clone()));
    // Prefill and three tokens; then a step needs the device.
    for _ in 0..3 {
        divided.step().unwrap();
    }
    let part = divided.abandon(request(0, begun.clone()).ticket).unwrap();
    assert!(!part.tokens.is_empty() && part.tokens.len() < 12);
    divided.leave_device().unwrap();
    divided.return_to_device().unwrap();
    let next = GenerateTask { sampled: Some(Box::new(part)), ..begun.clone() };
    let done = turns(&mut divided, vec![next]).remove(0);
    let whole = turns(&mut engine(&weights), vec![begun]).remove(0);
    close(&done, &whole);
    assert_eq!(done.cached_tokens, 0, "the KV cache was released");
    // And with new weights instead of its own.
    let newer = version(3, &TorchTrainer::new().initialise(&model(2, 256, 0.2), 9).unwrap());
    divided.leave_device().unwrap();
    load(&mut divided, &newer);
    let under_new = turns(&mut divided, vec![task(tokens(30, 2), 4, 2)]).remove(0);
    close(&under_new, &turns(&mut engine(&newer), vec![task(tokens(30, 2), 4, 2)])[0]);
}
