//! Blocks of the KV cache: prefix sharing and pre-emption, neither of which shows in a result.

use millrace_policy::{Engine, Ticket, Trainer};
use millrace_schemas::generate::{GenerateDone, GenerateTask};
use millrace_schemas::submit::ModelSpec;
use millrace_torch::{EngineSettings, TorchEngine, TorchTrainer};
use tch::Device;

use crate::support::{VOCABULARY, engine, initial, request, run, task, tokens, turns, version};

/// Samples of one prompt, each with a seed of its own.
fn samples(count: u64, prompt: usize, new: u32) -> Vec<GenerateTask> {
    (0..count).map(|seed| task(tokens(prompt, 1), new, seed)).collect()
}

fn with(settings: EngineSettings) -> TorchEngine {
    TorchEngine::new(&initial(1), settings).unwrap()
}

fn assert_same(ours: &[GenerateDone], theirs: &[GenerateDone]) {
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert_eq!(ours.tokens, theirs.tokens);
        assert!(ours.logprobs.iter().zip(&theirs.logprobs).all(|(a, b)| (a - b).abs() < 1e-5));
    }
}

fn alone(tasks: &[GenerateTask]) -> Vec<GenerateDone> {
    tasks.iter().map(|task| turns(&mut engine(&initial(1)), vec![task.clone()]).remove(0)).collect()
}

#[test]
fn the_samples_of_a_prompt_cost_one_prefill() {
    let tasks = samples(8, 104, 5);
    let done = turns(&mut engine(&initial(1)), tasks.clone());
    // The first computes the prompt. The others wait for it, and compute its last token.
    let computed: Vec<u32> = done.iter().map(|done| done.prefill_tokens).collect();
    assert_eq!(computed, [104, 1, 1, 1, 1, 1, 1, 1]);
    assert!(done.iter().all(|done| done.prefill_tokens + done.cached_tokens == 104));
    assert_same(&done, &alone(&tasks));
    assert_ne!(done[0].tokens, done[1].tokens, "seeds that make no difference show nothing");
}

#[test]
fn of_a_large_model_a_short_prompt_is_worth_waiting_for() {
    let computed = |width, feed_forward| {
        let model = ModelSpec::Decoder {
            vocabulary: VOCABULARY,
            layers: 2,
            width,
            heads: 4,
            feed_forward,
            context: 64,
            init_std: 0.2,
        };
        let weights = version(0, &TorchTrainer::new().initialise(&model, 1).unwrap());
        let done = turns(&mut engine(&weights), samples(4, 28, 2));
        done.iter().map(|done| done.prefill_tokens).collect::<Vec<_>>()
    };
    assert_eq!(computed(64, 256), [28; 4], "computed in less than a step's own time");
    // A GPU computes 28 rows in the time in which it reads the weights once, however many they are:
    // there nobody waits for fewer than 32.
    let gpu = Device::cuda_if_available().is_cuda();
    assert_eq!(computed(512, 1024), if gpu { [28; 4] } else { [28, 1, 1, 1] });
}

#[test]
fn a_request_gets_the_same_alone_batched_chunked_and_preempted() {
    let later = task(tokens(50, 9), 40, 77);
    let expected = alone(std::slice::from_ref(&later));
    let crowd = |engine: &mut TorchEngine| {
        for index in 0..15 {
            let prompt = 3 + 7 * index as usize;
            engine.admit(request(index, task(tokens(prompt, u64::from(index)), 60, u64::from(index))));
        }
        // The youngest request is pre-empted first.
        engine.admit(request(99, later.clone()));
        let mut results = run(engine, 16);
        vec![results.remove(&Ticket(99)).unwrap().unwrap()]
    };
    assert_same(&crowd(&mut engine(&initial(1))), &expected);
    let pieces = EngineSettings { prefill_tokens: Some(7), ..EngineSettings::default() };
    assert_same(&crowd(&mut with(pieces)), &expected);
    // Bytes of 20 blocks: 16 positions of two layers, 64 keys and 64 values in f32.
    let tight = EngineSettings { cache_bytes: Some(20 * 16 * 2 * 128 * 4), ..EngineSettings::default() };
    assert_same(&crowd(&mut with(tight)), &expected);
}

#[test]
fn a_long_prompt_does_not_delay_other_requests() {
    let mut engine = with(EngineSettings { prefill_tokens: Some(16), ..EngineSettings::default() });
    engine.admit(request(0, task(tokens(10, 1), 8, 1)));
    engine.step().unwrap();
    // 200 tokens take 13 steps; the turn that was being sampled needs seven more.
    engine.admit(request(1, task(tokens(200, 2), 1, 2)));
    let mut ended = Vec::new();
    for step in 1..=13 {
        ended.extend(engine.step().unwrap().into_iter().map(|one| (step, one.ticket)));
    }
    assert_eq!(ended, [(7, Ticket(0)), (13, Ticket(1))]);
}

#[test]
fn old_requests_are_never_preempted_for_young_ones() {
    // Room for one at its full length and a little more: the first ends first, although others need
    // blocks.
    let tight = EngineSettings { cache_bytes: Some(1), ..EngineSettings::default() };
    let mut engine = with(tight);
    let tasks: Vec<GenerateTask> = (0..4).map(|i| task(tokens(16, i), 100, i)).collect();
    for (index, task) in tasks.iter().enumerate() {
        engine.admit(request(index as u32, task.clone()));
    }
    let (mut steps, mut order) = (0, Vec::new());
    while order.len() < 4 {
        steps += 1;
        order.extend(engine.step().unwrap().into_iter().map(|one| (steps, one.ticket, one.result.unwrap())));
    }
    assert_eq!((order[0].0, order[0].1), (100, Ticket(0)), "it is computed in every step");
    order.sort_by_key(|(_, ticket, _)| *ticket);
    let done: Vec<GenerateDone> = order.into_iter().map(|(_, _, done)| done).collect();
    assert_same(&done, &alone(&tasks));
    // Tokens sampled before a pre-emption are not drawn again: their version is reported once.
    assert!(done.iter().all(|done| done.segments.len() == 1 && done.check().is_ok()));
}
