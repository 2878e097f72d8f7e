//! The forward: against the oracle, and the cached one against the whole one.

use millrace_policy::LoadedVersion;
use millrace_torch::decoder::{Config, Decoder, Extent, KvCache, Lane, Layout, Packed, Rows, read_tensors};
use tch::{Device, Kind, Tensor};

use crate::step::Oracle;
use crate::support::{VOCABULARY, initial, tokens};

/// Logits `[T, V]` of all tokens of one sequence, by the forward of training.
pub(crate) fn whole(decoder: &Decoder, tokens: &[u32]) -> Tensor {
    let length = tokens.len() as i64;
    let positions = Tensor::arange(length, (Kind::Int64, Device::Cpu));
    let rows = Rows {
        tokens: Tensor::from_slice(&tokens.iter().map(|&t| i64::from(t)).collect::<Vec<_>>()),
        positions: positions.shallow_clone(),
        logit_rows: positions.shallow_clone(),
    };
    let logit_positions: Vec<i64> = (0..length).collect();
    let extent = Extent { tokens: length, logit_positions: &logit_positions };
    decoder.forward(&rows, &mut Packed::new(decoder.config(), &[extent], Device::Cpu))
}

pub(crate) fn difference(a: &Tensor, b: &Tensor) -> f64 {
    f64::try_from((a - b).abs().max()).unwrap()
}

pub(crate) fn decoder(seed: u64) -> Decoder {
    decoder_of(&initial(seed))
}

pub(crate) fn decoder_of(version: &LoadedVersion) -> Decoder {
    decoder_to(version, false)
}

/// With `train`, its weights take gradients.
fn decoder_to(version: &LoadedVersion, train: bool) -> Decoder {
    let config = Config::read(&version.files["config.json"]).unwrap();
    let flat = read_tensors("model", &version.files["model.safetensors"], "", &Layout::of(&config)).unwrap();
    Decoder::new(config, &flat, Device::Cpu, train)
}

#[test]
fn logits_are_the_oracles() {
    let oracle = Oracle::read();
    let logits = whole(&oracle.decoder(), &oracle.tokens);
    let theirs = Tensor::from_slice(&oracle.logits).view([oracle.tokens.len() as i64, -1]);
    assert_eq!(logits.size(), theirs.size());
    let off = difference(&logits.to_kind(Kind::Double), &theirs);
    assert!(off < 2e-6, "off by {off}");
}

#[test]
fn the_cached_forward_gives_the_whole_forwards_logits() {
    let decoder = decoder(3);
    let sequences: Vec<Vec<u32>> = [40, 7, 25].map(|n| tokens(n, n as u64)).into();
    let cache = || KvCache::new(decoder.config(), 8, Kind::Float, Device::Cpu);
    for mut cache in [cache(), cache().with_flash(true)] {
        follow_the_whole_forward(&decoder, &sequences, &mut cache);
    }
}

fn follow_the_whole_forward(decoder: &Decoder, sequences: &[Vec<u32>], cache: &mut KvCache) {
    let tables = [[5, 0, 3], [7, 1, 6], [4, 2, 1]];
    // Ragged parts: whole prompts, one token each, and unlike lengths side by side.
    for cuts in [[0, 0, 0], [30, 3, 20], [31, 4, 21], [39, 6, 22], [40, 7, 25]].windows(2) {
        let lanes: Vec<Lane<'_>> = (0..3)
            .map(|i| Lane {
                blocks: &tables[i],
                cached: cuts[0][i],
                tokens: &sequences[i][cuts[0][i]..cuts[1][i]],
            })
            .collect();
        let (rows, mut attend) = cache.prepare(&lanes);
        let logits = decoder.forward(&rows, &mut attend);
        assert_eq!(logits.size(), [3, i64::from(VOCABULARY)]);
        for (i, sequence) in sequences.iter().enumerate() {
            let expected = whole(decoder, &sequence[..cuts[1][i]]).get(cuts[1][i] as i64 - 1);
            let off = difference(&logits.get(i as i64), &expected);
            assert!(off < 1e-5, "sequence {i} at {}: off by {off}", cuts[1][i]);
        }
    }
}

#[test]
fn rollouts_side_by_side_do_not_see_one_another() {
    let decoder = decoder(4);
    // Two classes: the first of unlike lengths with unlike numbers of rows with logits, the second
    // of one rollout.
    let sequences: Vec<Vec<u32>> = [100, 90, 80, 30].map(|n| tokens(n, n as u64)).into();
    let logit_positions: [&[i64]; 4] = [&[0, 50, 99], &[89], &[3, 4], &[29, 7]];
    let mut extents = Vec::new();
    let (mut rows, mut places, mut selected) = (Vec::new(), Vec::new(), Vec::new());
    for (sequence, logit_positions) in sequences.iter().zip(logit_positions) {
        extents.push(Extent { tokens: sequence.len() as i64, logit_positions });
        selected.extend(logit_positions.iter().map(|at| rows.len() as i64 + at));
        rows.extend(sequence.iter().map(|&token| i64::from(token)));
        places.extend(0..sequence.len() as i64);
    }
    let [rows, places, selected] = [rows, places, selected].map(|numbers| Tensor::from_slice(&numbers));
    let rows = Rows { tokens: rows, positions: places, logit_rows: selected };
    let mut packed = Packed::new(decoder.config(), &extents, Device::Cpu);
    assert_eq!(packed.classes(), 2);
    let logits = decoder.forward(&rows, &mut packed);
    let alone: Vec<Tensor> = sequences
        .iter()
        .zip(logit_positions)
        .map(|(sequence, logit_positions)| {
            whole(&decoder, sequence).index_select(0, &Tensor::from_slice(logit_positions))
        })
        .collect();
    let off = difference(&logits, &Tensor::cat(&alone, 0));
    assert!(off < 1e-5, "off by {off}");
}

/// Logits and gradients of a loss, on one row a token, or on rows that tokens share.
fn by_rows(sequences: &[Vec<u32>], logit_positions: &[&[i64]], shared: bool) -> (Tensor, Vec<Tensor>, i64) {
    let decoder = decoder_to(&initial(4), true);
    let mut known: Vec<Vec<u32>> = Vec::new();
    let (mut tokens, mut places, mut rows, mut selected) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (sequence, logit_positions) in sequences.iter().zip(logit_positions) {
        let first = rows.len();
        for end in 1..=sequence.len() {
            let before = sequence[..end].to_vec();
            let there = known.iter().position(|known| *known == before).filter(|_| shared);
            rows.push(there.unwrap_or(tokens.len()) as i64);
            if there.is_none() {
                known.push(before);
                tokens.push(i64::from(sequence[end - 1]));
                places.push(end as i64 - 1);
            }
        }
        selected.extend(logit_positions.iter().map(|&at| rows[first + at as usize]));
    }
    let extents = sequences.iter().zip(logit_positions);
    let extents: Vec<Extent<'_>> = extents
        .map(|(sequence, logit_positions)| Extent { tokens: sequence.len() as i64, logit_positions })
        .collect();
    let count = tokens.len() as i64;
    let [tokens, places, selected] = [tokens, places, selected].map(|numbers| Tensor::from_slice(&numbers));
    let mut packed = Packed::new(decoder.config(), &extents, Device::Cpu).on_rows(&rows, Device::Cpu);
    let logits = decoder.forward(&Rows { tokens, positions: places, logit_rows: selected }, &mut packed);
    tch::manual_seed(3);
    (&logits * logits.randn_like()).sum(Kind::Float).backward();
    (logits.detach(), decoder.leaves().into_iter().map(Tensor::grad).collect(), count)
}

#[test]
fn rollouts_that_share_rows_get_what_they_get_apart() {
    let prompt = tokens(40, 1);
    let then = |more: &[u32]| [prompt.as_slice(), more].concat();
    // Two part after the prompt, a third after the first one's answer began; the last has nothing
    // in common with them.
    let sequences = [
        then(&[1, 2, 3, 4, 5]),
        then(&[6, 7]),
        then(&[1, 2, 9]),
        tokens(70, 2),
        then(&[]),
        then(&[1, 2, 3, 4, 5]),
    ];
    let logit_positions: [&[i64]; 6] = [&[39, 40, 44], &[39, 41], &[39, 42], &[3, 69], &[39], &[44]];
    let (logits, gradients, rows) = by_rows(&sequences, &logit_positions, true);
    let (alone, theirs, all) = by_rows(&sequences, &logit_positions, false);
    assert_eq!((rows, all), (40 + 5 + 2 + 1 + 70, 45 + 42 + 43 + 70 + 40 + 45));
    assert!(difference(&logits, &alone) < 1e-5, "off by {}", difference(&logits, &alone));
    for (index, (ours, theirs)) in gradients.iter().zip(&theirs).enumerate() {
        let (off, size) = (difference(ours, theirs), f64::try_from(theirs.abs().max()).unwrap());
        assert!(off < 1e-5 * size.max(1.0), "leaf {index}: off by {off} of {size}");
    }
}

#[test]
fn grouped_key_heads_and_tied_embeddings_are_computed() {
    // Two query heads share each key head. The same model with the key heads written out twice must
    // agree.
    let config = |kv: i64| {
        let text = format!(
            r#"{{"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":32,"hidden_size":64,
            "intermediate_size":128,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":{kv},
            "max_position_embeddings":64,"rms_norm_eps":1e-5,"tie_word_embeddings":true}}"#
        );
        let mut config = Config::read(text.as_bytes()).unwrap();
        config.initializer_range = 0.2;
        config
    };
    let (grouped, full) = (config(2), config(4));
    let weights = Decoder::initial(&grouped, 1);
    let pieces: Vec<Tensor> = Layout::of(&grouped)
        .parts
        .iter()
        .map(|part| {
            let piece = weights.narrow(0, part.offset, part.len());
            if part.name.contains("k_proj") || part.name.contains("v_proj") {
                let heads = piece.view([2, 1, 16, 64]);
                return heads.expand([2, 2, 16, 64], false).reshape([-1]);
            }
            piece
        })
        .collect();
    let grouped = Decoder::new(grouped, &weights, Device::Cpu, false);
    let full = Decoder::new(full, &Tensor::cat(&pieces, 0), Device::Cpu, false);
    let tokens = tokens(20, 3);
    let off = difference(&whole(&grouped, &tokens), &whole(&full, &tokens));
    assert!(off < 1e-5, "off by {off}");
}
