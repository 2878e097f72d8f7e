//! The probe of a version, with which an inference server proves that it has these weights.

use std::collections::BTreeMap;

use bytes::Bytes;
use millrace_policy::probe::{PROBE_FILE, ProbeRecord};
use millrace_policy::{CONFIG_FILE, MODEL_FILE, PolicyError};
use tch::{Kind, Tensor};

use super::layer_stack::{Weights, look};
use crate::decoder::{Config, Decoder, Extent, Layout, Packed, Rows, read_tensors};
use crate::gang::GangError;

/// The probe of a decoder. There is none where the model takes fewer than two tokens, or gives no
/// numbers.
///
/// # Errors
/// A member was lost.
pub(super) fn probe(weights: Weights<'_>) -> Result<Option<Bytes>, GangError> {
    let config = weights.decoder.config();
    let tokens = ProbeRecord::prompt(config.vocab_size as u32, config.context);
    if tokens.len() < 2 {
        return Ok(None);
    }
    let logprobs = logprobs(weights, &tokens)?;
    let finite = logprobs.iter().all(|logprob| logprob.is_finite());
    Ok(finite.then(|| ProbeRecord { tokens, logprobs }.to_json()))
}

/// Adds the probe of a version to its files.
pub(super) fn record_files(
    files: &mut BTreeMap<String, Bytes>,
    device: tch::Device,
) -> Result<(), PolicyError> {
    let config = Config::read(&files[CONFIG_FILE])?;
    let weights = read_tensors(MODEL_FILE, &files[MODEL_FILE], "", &Layout::of(&config))?;
    let decoder = Decoder::new(config, &weights, device, false);
    let probe = probe(Weights { decoder: &decoder, gathering: None })?;
    files.extend(probe.map(|probe| (PROBE_FILE.to_owned(), probe)));
    Ok(())
}

/// Log-probability of each token `[T]` but the first, given those before it. `[T - 1]`
fn logprobs(weights: Weights<'_>, tokens: &[u32]) -> Result<Vec<f32>, GangError> {
    let _guard = tch::no_grad_guard();
    let decoder = weights.decoder;
    let device = decoder.device();
    let tokens: Vec<i64> = tokens.iter().map(|&token| i64::from(token)).collect();
    let (inputs, targets) = (&tokens[..tokens.len() - 1], &tokens[1..]);
    let positions: Vec<i64> = (0..inputs.len() as i64).collect();
    let on_device = |numbers: &[i64]| Tensor::from_slice(numbers).to_device(device);
    let rows = Rows {
        tokens: on_device(inputs),
        positions: on_device(&positions),
        logit_rows: on_device(&positions),
    };
    let extent = Extent { tokens: inputs.len() as i64, logit_positions: &positions };
    let hidden = look(weights, &rows, &mut Packed::new(decoder.config(), &[extent], device))?;
    let all = hidden.linear(decoder.head(), None::<Tensor>).log_softmax(-1, Kind::Float);
    let given = all.gather(1, &on_device(targets).unsqueeze(1), false).squeeze_dim(1);
    Ok(Vec::try_from(given).expect("a row of f32 for each token"))
}
