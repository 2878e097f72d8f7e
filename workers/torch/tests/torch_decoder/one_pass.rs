//! A train step's forward and backward as CUDA computes them, beside the plain way: passes between
//! products, and attention without padding. Where there is no GPU the same passes run on a CPU.

use millrace_torch::decoder::{Config, Decoder, Extent, Packed, Rows};
use tch::{Device, Kind, Tensor};

use crate::support::tokens;

/// A model of wide enough heads, with norms of heads or without, and grouped key heads.
fn config(norms: bool, precision: &str) -> Config {
    let (architecture, kind) =
        if norms { ("Qwen3ForCausalLM", "qwen3") } else { ("LlamaForCausalLM", "llama") };
    let text = format!(
        r#"{{"architectures":["{architecture}"],"model_type":"{kind}","vocab_size":32,"hidden_size":64,
        "intermediate_size":128,"num_hidden_layers":3,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":32,
        "max_position_embeddings":256,"rms_norm_eps":1e-5,"tie_word_embeddings":true,"torch_dtype":"{precision}"}}"#
    );
    let mut config = Config::read(text.as_bytes()).unwrap();
    // Without norms of heads, larger weights make bf16 itself coarse.
    config.initializer_range = if norms { 0.2 } else { 0.1 };
    config
}

/// Rollouts of unlike lengths, with rows of their own or with those of a common prefix shared.
struct Rollouts {
    sequences: Vec<Vec<u32>>,
    logit_positions: Vec<Vec<i64>>,
}

impl Rollouts {
    fn new() -> Self {
        let prompt = tokens(40, 1);
        let then = |more: &[u32]| [prompt.as_slice(), more].concat();
        let sequences =
            vec![then(&tokens(90, 7)), tokens(70, 2), then(&[6, 7]), then(&[1, 2, 9]), tokens(1, 3)];
        // Of several turns; in no order; the last rows; one; a rollout of one token.
        let logit_positions = vec![vec![39, 40, 60, 129], vec![69, 3, 17], vec![40, 41], vec![39], vec![0]];
        Self { sequences, logit_positions }
    }

    /// Logits and the gradients of all leaves.
    fn compute(&self, decoder: &Decoder, (unpadded, shared): (bool, bool)) -> Vec<Tensor> {
        let device = decoder.flat().device();
        let mut known: Vec<&[u32]> = Vec::new();
        let (mut inputs, mut positions, mut rows, mut logit_rows) = (vec![], vec![], vec![], vec![]);
        for (sequence, logit_positions) in self.sequences.iter().zip(&self.logit_positions) {
            let first = rows.len();
            for end in 1..=sequence.len() {
                let before = &sequence[..end];
                let there = known.iter().position(|known| *known == before).filter(|_| shared);
                rows.push(there.unwrap_or(known.len()) as i64);
                if there.is_none() {
                    known.push(before);
                    inputs.push(i64::from(sequence[end - 1]));
                    positions.push(end as i64 - 1);
                }
            }
            logit_rows.extend(logit_positions.iter().map(|&at| rows[first + at as usize]));
        }
        let extents = self.sequences.iter().zip(&self.logit_positions);
        let extents: Vec<Extent<'_>> = extents
            .map(|(sequence, logit_positions)| Extent { tokens: sequence.len() as i64, logit_positions })
            .collect();
        let make = if unpadded { Packed::unpadded } else { Packed::padded };
        let mut packed = make(decoder.config(), &extents, device).on_rows(&rows, device);
        let [tokens, positions, logit_rows] =
            [inputs, positions, logit_rows].map(|numbers| Tensor::from_slice(&numbers).to_device(device));
        let logits = decoder.forward(&Rows { tokens, positions, logit_rows }, &mut packed);
        tch::manual_seed(3);
        let weights = Tensor::randn(logits.size(), (Kind::Float, Device::Cpu)).to_device(device);
        (&logits.to_kind(Kind::Float) * weights).sum(Kind::Float).backward();
        let gradients = decoder.leaves().into_iter().map(Tensor::grad);
        std::iter::once(logits.detach()).chain(gradients).map(|x| x.to_device(Device::Cpu)).collect()
    }
}

/// The difference as a share of `theirs`.
fn off(ours: &Tensor, theirs: &Tensor) -> f64 {
    let norm = |of: &Tensor| f64::try_from(of.to_kind(Kind::Double).norm()).unwrap();
    norm(&(ours.to_kind(Kind::Double) - theirs.to_kind(Kind::Double))) / norm(theirs)
}

fn decoder(config: &Config, weights: &Tensor, device: Device) -> Decoder {
    Decoder::new(config.clone(), weights, device, true)
}

#[test]
fn passes_and_attention_as_on_cuda_are_as_near_to_f32_as_the_plain_ones() {
    let gpu = Device::cuda_if_available();
    if !gpu.is_cuda() {
        println!("no GPU: the passes run on a CPU");
    }
    let rollouts = Rollouts::new();
    for norms in [true, false] {
        let (half, full) = (config(norms, "bfloat16"), config(norms, "float32"));
        let weights = Decoder::initial(&full, 4).to_kind(Kind::BFloat16).to_kind(Kind::Float);
        for shared in [false, true] {
            let exact = rollouts.compute(&decoder(&full, &weights, Device::Cpu), (false, shared));
            let plain = decoder(&half, &weights, gpu).with_one_pass(false);
            let plain = rollouts.compute(&plain, (false, shared));
            let fast = decoder(&half, &weights, gpu).with_one_pass(true);
            let fast = rollouts.compute(&fast, (true, shared));
            for (index, exact) in exact.iter().enumerate() {
                let (ours, theirs) = (off(&fast[index], exact), off(&plain[index], exact));
                let what = format!("norms={norms} shared={shared} tensor={index}");
                println!("{what}: off by {ours:.4}, the plain way by {theirs:.4}");
                assert!(
                    ours < 0.05 && ours < 1.7 * theirs + 2e-3,
                    "{what}: off by {ours}, the plain way {theirs}"
                );
            }
        }
    }
}
