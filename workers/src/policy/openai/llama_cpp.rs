//! llama.cpp's `llama-server`, by its own `/completion` with token ids: its OpenAI calls return no
//! ids. A streamed reply leaves out tokens that are half of a character, so replies are read whole.
//! To reach a boundary soon, a turn is sampled in short pieces, each from the server's cached
//! prompt.
//!
//! It loads a GGUF file at its start, so it needs a command that converts the version and restarts
//! it (`ServerSettings::reload`). The path of the file must contain the version's name, such as
//! v000042. The server reports that path, which proves the version.

use serde_json::{Value, json};

use super::http::Http;
use super::{Ask, Piece, ServerError};

const PATH: &str = "/completion";
/// Tokens of one piece, and so the longest wait for a boundary.
const PIECE: u32 = 64;
/// Tokens of the probe.
const PROBE: u32 = 8;
const LACKS: &str = "its reply has no `tokens` or `completion_probabilities`; it must heed `return_tokens` and `n_probs` \
                     (llama-server does from b4300)";

/// Samples a piece.
pub(super) async fn sample(http: &Http, ask: &Ask<'_>) -> Result<Piece, ServerError> {
    ask.refuse_cuts("llama.cpp's server")?;
    let temperature = ask.sampling.temperature;
    let request = json!({
        "prompt": ask.context,
        "n_predict": ask.max_new_tokens.min(PIECE),
        "temperature": temperature,
        // No other sampler than this one.
        "samplers": ["temperature"],
        // -1 is one of its own.
        "seed": ask.seed.map_or(-1, |seed| i64::from(seed as u32)),
        "n_probs": 1,
        // Of the distribution that was drawn from; greedy, at temperature 1.
        "post_sampling_probs": temperature != 0.0,
        "return_tokens": true, "cache_prompt": true, "stream": false,
    });
    let reply = http.ask(PATH, &request, http.silence()).await?;
    if reply["truncated"] == true {
        return Err(ServerError::Refused(
            "the context does not fit; start it with a larger --ctx-size".to_owned(),
        ));
    }
    let cached = reply["timings"]["cache_n"].as_u64().unwrap_or(0) as u32;
    let prompt = reply["tokens_evaluated"].as_u64().map(|tokens| tokens as usize);
    let (tokens, logprobs) = sampled(&reply)?;
    Ok(Piece { tokens, logprobs, cached, prompt, ..Piece::none() })
}

/// Tokens and log-probabilities of a reply.
fn sampled(reply: &Value) -> Result<(Vec<u32>, Vec<f32>), ServerError> {
    let lacks = || ServerError::Unfit(LACKS.to_owned());
    let ids = reply["tokens"].as_array().ok_or_else(lacks)?;
    let reported = reply["completion_probabilities"].as_array().ok_or_else(lacks)?;
    if ids.len() != reported.len() {
        return Err(if ids.is_empty() || reported.is_empty() {
            lacks()
        } else {
            ServerError::malformed(&format!(
                "tokens={} and probabilities={} must agree",
                ids.len(),
                reported.len()
            ))
        });
    }
    let read = |(id, reported): (&Value, &Value)| {
        let token = u32::try_from(id.as_u64()?).ok()?;
        let logprob = reported["logprob"].as_f64().or_else(|| reported["prob"].as_f64().map(f64::ln))?;
        (reported["id"] == *id).then_some((token, logprob as f32))
    };
    ids.iter()
        .zip(reported)
        .map(read)
        .collect::<Option<Vec<_>>>()
        .map(|pairs| pairs.into_iter().unzip())
        .ok_or_else(lacks)
}

/// Log-probabilities of the tokens that it samples greedily after a prompt.
pub(super) async fn probe(http: &Http, tokens: &[u32]) -> Result<Vec<f32>, ServerError> {
    let request = json!({
        "prompt": tokens, "n_predict": PROBE, "temperature": 0.0, "samplers": ["temperature"],
        "n_probs": 1, "post_sampling_probs": false, "return_tokens": true, "cache_prompt": false,
    });
    let mut logprobs = sampled(&http.ask(PATH, &request, http.silence()).await?)?.1;
    if logprobs.is_empty() {
        return Err(ServerError::Unfit(LACKS.to_owned()));
    }
    // It may end before; all measurements must have one length.
    logprobs.resize(PROBE as usize, 0.0);
    Ok(logprobs)
}
