//! Steps of one new token a lane as a GPU makes them, beside the general forward. Without a GPU the same kernels run in their
//! emulation, so that what they compute is tested everywhere; how they are captured, only where there is one.

use millrace_kernels::cuda::{self, ROW_WORDS, StepRow};
use millrace_schemas::generate::{GenerateDone, GenerateTask};
use millrace_torch::decoder::{BLOCK, Config, Decoder, KvCache, Lane, StepInputs};
use millrace_torch::{Draw, EngineSettings, TorchEngine, draw, uniform};
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use crate::half::initial_half;
use crate::support::{VOCABULARY, initial, load, task, tokens, turns};

/// Heads as in Llama, Qwen2 and Qwen3, of each width that is emulated.
fn shapes() -> [Value; 4] {
    let shape = |family: &str, heads: [u32; 2], head_dim: u32| {
        json!({
            "architectures": [format!("{family}ForCausalLM")], "model_type": family.to_lowercase(), "vocab_size": 300,
            "hidden_size": heads[0] * head_dim / 2, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": heads[0], "num_key_value_heads": heads[1], "head_dim": head_dim,
            "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": family != "Llama",
        })
    };
    [
        shape("Llama", [4, 4], 16),
        shape("Qwen2", [14, 2], 64),
        shape("Qwen3", [4, 2], 128),
        shape("Llama", [8, 2], 32),
    ]
}

fn decoder(shape: &Value, kind: Kind, device: Device) -> Decoder {
    let mut shape = shape.clone();
    shape["dtype"] = if kind == Kind::Float { "float32" } else { "bfloat16" }.into();
    let config = Config::read(shape.to_string().as_bytes()).unwrap();
    // Above the default, so that what is computed is far from even.
    let flat = Decoder::initial(&config, 3) * 8;
    Decoder::new(config, &flat, device, false)
}

/// Numbers of a step, in the order of its lanes.
fn inputs(config: &Config, lanes: &[Lane<'_>], device: Device) -> StepInputs {
    let table = 16;
    let (mut rows, mut tables) = (Vec::new(), Vec::new());
    for lane in lanes {
        let position = lane.cached;
        let cell = lane.blocks[position / BLOCK] * BLOCK + position % BLOCK;
        let (token, length) = (lane.tokens[0], position + 1);
        let row = StepRow { token, position, cell, length, below: u32::MAX, temperature: 1.0, random: 0.5 };
        rows.extend(row.words());
        tables.extend((0..table).map(|at| lane.blocks.get(at).map_or(0, |&block| block as i32)));
    }
    let count = lanes.len() as i64;
    let upload =
        |words: &[i32], width: usize| Tensor::from_slice(words).to_device(device).view([count, width as i64]);
    StepInputs::new(config, upload(&rows, ROW_WORDS), upload(&tables, table))
}

#[test]
fn a_step_gives_the_logits_of_the_general_forward_and_caches_the_same() {
    let _guard = tch::no_grad_guard();
    let device = Device::cuda_if_available();
    // Up to a block's edge, beyond it, the first position; one to four rows share a matrix's pass, five do not.
    let lengths = [1_usize, 16, 17, 200, 31];
    for (shape, kind) in
        shapes().iter().flat_map(|shape| [Kind::Float, Kind::BFloat16].map(|kind| (shape, kind)))
    {
        let decoder = decoder(shape, kind, device);
        for count in [1, 2, 4, 5] {
            let prompts: Vec<Vec<u32>> = lengths[..count].iter().map(|&n| tokens(n, n as u64)).collect();
            let blocks: Vec<Vec<usize>> =
                (0..count).map(|lane| (0..13).map(|block| (block * count + lane) % 70).collect()).collect();
            let mut caches = [(); 2].map(|()| KvCache::new(decoder.config(), 70, kind, device));
            for cache in &mut caches {
                let lanes = prompts.iter().zip(&blocks).filter(|(prompt, _)| prompt.len() > 1);
                let lanes: Vec<Lane<'_>> = lanes
                    .map(|(prompt, blocks)| Lane { blocks, cached: 0, tokens: &prompt[..prompt.len() - 1] })
                    .collect();
                if !lanes.is_empty() {
                    let (rows, mut attend) = cache.prepare(&lanes);
                    let _ = decoder.forward(&rows, &mut attend);
                }
            }
            let lanes: Vec<Lane<'_>> = prompts
                .iter()
                .zip(&blocks)
                .map(|(prompt, blocks)| {
                    let cached = prompt.len() - 1;
                    Lane { blocks, cached, tokens: &prompt[cached..] }
                })
                .collect();
            let [general, own] = &mut caches;
            let (rows, mut attend) = general.prepare(&lanes);
            let expected = decoder.forward(&rows, &mut attend).to_kind(Kind::Double);
            let inputs = inputs(decoder.config(), &lanes, device);
            // Twice: what shares of a row leave behind must not matter.
            for _ in 0..2 {
                let logits = decoder.step(&inputs, own).to_kind(Kind::Double);
                let norm = |of: Tensor| f64::try_from(of.norm()).unwrap();
                let off = norm(&logits - &expected) / norm(&expected - expected.mean(Kind::Double));
                let most = if kind == Kind::Float { 1e-4 } else { 0.1 };
                println!("{shape} {kind:?} rows={count}: off by {off:.2e} of the logits' spread");
                assert!(off < most, "{shape} {kind:?} rows={count}: off by {off}");
            }
        }
    }
}

#[test]
fn tokens_are_drawn_as_the_sampler_draws_them() {
    let device = Device::cuda_if_available();
    tch::manual_seed(5);
    for (kind, vocabulary) in [(Kind::Float, 300), (Kind::BFloat16, 5000), (Kind::Float, 33)] {
        let count = 40_i64;
        let logits = (Tensor::randn([count, vocabulary], (Kind::Float, Device::Cpu)) * 4).to_kind(kind);
        let draws: Vec<Draw> = (0..count as u64)
            .map(|row| Draw {
                below: (row % 3 == 0).then_some(20),
                ..Draw::at([1.0, 0.0, 0.7, 1.5][row as usize % 4], row, 9)
            })
            .collect();
        let rows = draws.iter().flat_map(|draw| {
            let below = draw.below.unwrap_or(u32::MAX);
            let (temperature, random) = (draw.temperature as f32, uniform(draw.seed, draw.position));
            StepRow { token: 0, position: 0, cell: 0, length: 1, below, temperature, random }.words()
        });
        let rows =
            Tensor::from_slice(&rows.collect::<Vec<i32>>()).to_device(device).view([count, ROW_WORDS as i64]);
        let out = Tensor::zeros([count, 2], (Kind::Int, device));
        cuda::draw(&logits.to_device(device), &rows, &out);
        let out = Vec::<i32>::try_from(out.view([-1])).unwrap();
        for ((ours, theirs), draw) in out.chunks_exact(2).zip(draw(&logits, &draws)).zip(&draws) {
            assert_eq!(ours[0], theirs.token.cast_signed(), "{draw:?}");
            let off = (f32::from_bits(ours[1].cast_unsigned()) - theirs.logprob).abs();
            assert!(off < 1e-5, "{draw:?}: off by {off}");
        }
    }
}

#[test]
fn a_random_number_just_below_one_takes_a_token_that_can_be() {
    let device = Device::cuda_if_available();
    // Only the first three tokens have any probability.
    let logits = Tensor::full([1, 1000], f64::NEG_INFINITY, (Kind::Float, device));
    let _ = logits.narrow(1, 0, 3).fill_(0.0);
    for (random, token) in [(0.0, 0), (0.34, 1), (1.0 - f64::EPSILON / 2.0, 2)] {
        let row =
            StepRow { token: 0, position: 0, cell: 0, length: 1, below: 1000, temperature: 1.0, random };
        let rows = Tensor::from_slice(&row.words()).to_device(device).view([1, ROW_WORDS as i64]);
        let out = Tensor::zeros([1, 2], (Kind::Int, device));
        cuda::draw(&logits, &rows, &out);
        assert_eq!(out.int64_value(&[0, 0]), token, "random={random}");
    }
}

fn tasks() -> Vec<GenerateTask> {
    let mut tasks: Vec<GenerateTask> = [5, 40, 1, 17, 90, 33]
        .iter()
        .enumerate()
        .map(|(i, &n)| task(tokens(n, n as u64), 3 + i as u32, i as u64))
        .collect();
    tasks[1].sampling.temperature = 0.0;
    tasks[2].sampling.sample_below = Some(VOCABULARY / 2);
    tasks[3].sampling.top_p = 0.8;
    tasks
}

fn assert_alike(ours: &[GenerateDone], theirs: &[GenerateDone], most: f32) {
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert_eq!(ours.tokens, theirs.tokens);
        for (a, b) in ours.logprobs.iter().zip(&theirs.logprobs) {
            assert!((a - b).abs() < most, "{a} instead of {b}");
        }
    }
}

#[test]
fn an_engine_samples_the_same_by_gpu_steps_as_by_the_general_forward() {
    let general = EngineSettings { gpu_steps: Some(false), ..EngineSettings::default() };
    let weights = initial(1);
    let expected = turns(&mut TorchEngine::new(&weights, general).unwrap(), tasks());
    let steps = EngineSettings { gpu_steps: Some(true), ..EngineSettings::default() };
    let tight = EngineSettings { cache_bytes: Some(1), ..steps };
    for settings in [steps, tight] {
        let mut ours = TorchEngine::new(&weights, settings).unwrap();
        assert!(ours.has_gpu_steps(), "its steps do not pass their check");
        assert_alike(&turns(&mut ours, tasks()), &expected, 1e-5);
        // Once more: the same steps are replayed, and the cache has content.
        assert_alike(&turns(&mut ours, tasks()), &expected, 1e-5);
    }
}

#[test]
fn replayed_steps_compute_with_the_weights_that_were_loaded_last() {
    use millrace_policy::Engine;
    let steps = EngineSettings { gpu_steps: Some(true), ..EngineSettings::default() };
    for (first, second) in [(initial(1), initial(2)), (initial_half(1), initial_half(2))] {
        let mut ours = TorchEngine::new(&first, steps).unwrap();
        assert!(ours.has_gpu_steps(), "its steps do not pass their check");
        let before = turns(&mut ours, tasks());
        load(&mut ours, &second);
        let after = turns(&mut ours, tasks());
        let fresh = turns(&mut TorchEngine::new(&second, steps).unwrap(), tasks());
        assert_alike(&after, &fresh, 1e-6);
        assert_ne!(before[0].logprobs, after[0].logprobs);
        ours.leave_device().unwrap();
        ours.return_to_device().unwrap();
        assert_alike(&turns(&mut ours, tasks()), &fresh, 1e-6);
    }
}
