//! Steps beside the general forward: a GPU is asked before an engine relies on them.

use tch::{Kind, Tensor};

use super::Steps;
use crate::decoder::{BLOCK, Decoder, KvCache, Lane};
use crate::sampling::Draw;

/// Tokens of the lanes that are computed together: one, two and four rows and more take different ways
/// through the matrices, three are padded, and a lane may end at a block's edge.
const LENGTHS: [&[usize]; 4] = [&[19], &[7, 33], &[3, 18, 40], &[1, 33, 5, 16, 17]];
/// KV-cache blocks of each lane: enough for the longest of `LENGTHS`.
const BLOCKS: usize = 3;
/// Differences of logits that rounding comes to, as a share of their spread.
const MOST_OFF: f64 = 1e-2;
/// The same in bf16.
const MOST_OFF_HALF: f64 = 0.1;

/// Compares what `steps` of `decoder` gives with the general forward of `general`.
///
/// # Errors
/// What differs, and by how much.
pub(super) fn steps(steps: &mut Steps, decoder: &Decoder, general: &Decoder) -> Result<(), String> {
    LENGTHS.into_iter().try_for_each(|lengths| compare(steps, [decoder, general], lengths))
}

fn compare(steps: &mut Steps, [decoder, general]: [&Decoder; 2], lengths: &[usize]) -> Result<(), String> {
    let _guard = tch::no_grad_guard();
    let (count, kind) = (lengths.len(), decoder.flat().kind());
    let mut cache = KvCache::new(decoder.config(), BLOCKS * count, kind, steps.device);
    let below = decoder.config().vocab_size as usize;
    let tokens: Vec<u32> = (0..BLOCKS * BLOCK).map(|at| ((at * 7 + 1) % below) as u32).collect();
    // The blocks of a lane are apart, and not in order.
    let blocks: Vec<Vec<usize>> =
        (0..count).map(|lane| (0..BLOCKS).rev().map(|block| block * count + lane).collect()).collect();
    let lanes = |parts: &dyn Fn(usize) -> [usize; 2]| -> Vec<Lane<'_>> {
        let lane = |(index, &length): (usize, &usize)| {
            let [cached, until] = parts(length);
            Lane { blocks: &blocks[index], cached, tokens: &tokens[cached..until] }
        };
        lengths.iter().enumerate().map(lane).collect()
    };
    let mut before = lanes(&|length| [0, length - 1]);
    before.retain(|lane| !lane.tokens.is_empty());
    let _ = general_logits(general, &mut cache, &before);

    let last = lanes(&|length| [length - 1, length]);
    let drawn = steps.forward(decoder, &cache, &last, &vec![Draw::at(0.0, 0, 0); count]);
    let step = steps.known.pop_last().ok_or("no step was made")?.1;
    let logits = step.logits.narrow(0, 0, count as i64).to_kind(Kind::Double);
    // After the steps, which have to write what they cache themselves.
    let expected = general_logits(general, &mut cache, &last);

    let likeliest = Vec::<i64>::try_from(logits.argmax(-1, false)).map_err(|error| error.to_string())?;
    if drawn.iter().zip(&likeliest).any(|(drawn, &token)| i64::from(drawn.token) != token) {
        return Err("the token that is drawn is not the likeliest".to_owned());
    }
    let off = norm(&(&logits - &expected)) / norm(&(&expected - expected.mean(Kind::Double)));
    let most = if kind == Kind::Float { MOST_OFF } else { MOST_OFF_HALF };
    // NaN is not below.
    if off < most { Ok(()) } else { Err(format!("logits of {count} lanes are off by {off} of their spread")) }
}

fn general_logits(decoder: &Decoder, cache: &mut KvCache, lanes: &[Lane<'_>]) -> Tensor {
    let (rows, mut attend) = cache.prepare(lanes);
    decoder.forward(&rows, &mut attend).to_kind(Kind::Double)
}

fn norm(of: &Tensor) -> f64 {
    f64::try_from(of.norm()).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;
    use crate::decoder::Config;

    fn decoder(seed: u64, precision: &str) -> Decoder {
        let config = format!(
            r#"{{"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","vocab_size":40,"hidden_size":32,
            "intermediate_size":48,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,
            "max_position_embeddings":64,"rms_norm_eps":1e-6,"tie_word_embeddings":true,"dtype":"{precision}"}}"#
        );
        let config = Config::read(config.as_bytes()).unwrap();
        let flat = Decoder::initial(&config, seed) * 8;
        Decoder::for_sampling(config, &flat, Device::Cpu)
    }

    #[test]
    fn steps_pass_where_they_compute_the_model_and_fail_where_they_compute_another() {
        for precision in ["float32", "bfloat16"] {
            let [one, other] = [1, 2].map(|seed| decoder(seed, precision));
            let mut of_cpu = Steps::new(Device::Cpu);
            steps(&mut of_cpu, &one, &one).unwrap();
            let error = steps(&mut of_cpu, &one, &other).unwrap_err();
            assert!(error.contains("are off by"), "{error}");
        }
    }
}
