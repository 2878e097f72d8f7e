//! vLLM, by `/v1/completions` with token ids, streamed, so that at a boundary the tokens so far are
//! known.
//!
//! Start it with `VLLM_SERVER_DEV_MODE=1` (for `/collective_rpc`, `/pause`, `/resume`,
//! `/reset_prefix_cache`), `--logprobs-mode processed_logprobs` (for temperatures other than 1,
//! top-p, top-k, min-p and bounds on tokens; without it log-probabilities are of temperature 1) and
//! `--enable-prompt-tokens-details` (to hear what its cache saved). The request asks for the rest:
//! `return_token_ids`, `return_tokens_as_token_ids`, `logprobs`, `prompt_logprobs`.

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::http::{Events, Http};
use super::{Ask, Piece, ServerError};

const PATH: &str = "/v1/completions";
const LACKS_IDS: &str = "its reply has no token ids; it must heed `return_token_ids` or `return_tokens_as_token_ids` \
                         (vLLM does from 0.10.2 and 0.6.3)";
const LACKS_LOGPROBS: &str = "its reply has no log-probabilities of the tokens; it must heed `logprobs` (with vLLM: \
                              `--max-logprobs` 1 or more)";
const RAW: &str = "start vLLM with `--logprobs-mode processed_logprobs`";

/// Samples a piece. The tokens streamed by the boundary are kept.
pub(super) async fn sample(
    http: &Http,
    model: Value,
    ask: &Ask<'_>,
    boundary: &CancellationToken,
) -> Result<Piece, ServerError> {
    ask.refuse_unscaled(RAW)?;
    ask.refuse_scaled_cuts("vLLM")?;
    let mut piece = Piece::none();
    let request = request(model, ask);
    let Some(events) = boundary.run_until_cancelled(http.stream(PATH, &request)).await else {
        return Ok(piece);
    };
    if let Some(read) = boundary.run_until_cancelled(read(events?, ask, &mut piece)).await {
        read?;
    }
    Ok(piece)
}

fn request(model: Value, ask: &Ask<'_>) -> Value {
    let sampling = ask.sampling;
    let top_k = if sampling.top_k == 0 { -1 } else { i64::from(sampling.top_k) };
    let mut request = json!({
        "prompt": ask.context,
        "max_tokens": ask.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p, "top_k": top_k, "min_p": sampling.min_p,
        // The server would take these from the model's generation config.
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
        // All that end the turn are among these.
        "stop_token_ids": ask.stop_tokens, "ignore_eos": true, "skip_special_tokens": false,
        "stop": sampling.stop_strings, "include_stop_str_in_output": true,
        "logprobs": 1, "return_token_ids": true, "return_tokens_as_token_ids": true,
        "request_id": ask.name,
        "stream": true, "stream_options": {"include_usage": true},
    });
    if let Some(seed) = ask.seed {
        request["seed"] = seed.cast_signed().into();
    }
    if let Some(below) = ask.below() {
        request["allowed_token_ids"] = (0..below).collect();
    }
    named(request, model)
}

fn named(mut request: Value, model: Value) -> Value {
    if !model.is_null() {
        request["model"] = model;
    }
    request
}

async fn read(mut events: Events, ask: &Ask<'_>, piece: &mut Piece) -> Result<(), ServerError> {
    while let Some(event) = events.next().await? {
        if let Some(error) = event.get("error") {
            return Err(ServerError::Failed(format!("it ended the reply: {error}")));
        }
        let usage = &event["usage"]["prompt_tokens_details"]["cached_tokens"];
        if let Some(cached) = usage.as_u64() {
            piece.cached = cached as u32;
        }
        let Some(choice) = event["choices"].get(0) else { continue };
        check_prompt(choice, ask)?;
        absorb(choice, piece)?;
    }
    Ok(())
}

/// With `return_token_ids` the server returns the context that it used.
fn check_prompt(choice: &Value, ask: &Ask<'_>) -> Result<(), ServerError> {
    let Some(prompt) = choice["prompt_token_ids"].as_array() else { return Ok(()) };
    let same = prompt.len() == ask.context.len()
        && prompt.iter().zip(ask.context).all(|(found, sent)| found.as_u64() == Some(u64::from(*sent)));
    if same {
        return Ok(());
    }
    let (sent, found) = (ask.context.len(), prompt.len());
    Err(ServerError::malformed(&format!(
        "it sampled after another context: tokens={found} where {sent} were sent"
    )))
}

fn absorb(choice: &Value, piece: &mut Piece) -> Result<(), ServerError> {
    let reported = &choice["logprobs"];
    let names = reported["tokens"].as_array().map_or(&[][..], Vec::as_slice);
    let tokens: Option<Vec<u32>> = match choice["token_ids"].as_array() {
        Some(ids) => ids.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect(),
        None => names.iter().map(|name| name.as_str()?.strip_prefix("token_id:")?.parse().ok()).collect(),
    };
    let tokens = tokens.ok_or_else(|| ServerError::Unfit(LACKS_IDS.to_owned()))?;
    // (With ids, text may come after its tokens.)
    if !choice["token_ids"].is_array()
        && tokens.is_empty()
        && choice["text"].as_str().is_some_and(|text| !text.is_empty())
    {
        return Err(ServerError::Unfit(LACKS_IDS.to_owned()));
    }
    let logprobs = reported["token_logprobs"].as_array().map_or(&[][..], Vec::as_slice);
    if logprobs.len() != tokens.len() {
        if logprobs.is_empty() {
            return Err(ServerError::Unfit(LACKS_LOGPROBS.to_owned()));
        }
        let (tokens, logprobs) = (tokens.len(), logprobs.len());
        return Err(ServerError::malformed(&format!("tokens={tokens} and logprobs={logprobs} must agree")));
    }
    for logprob in logprobs {
        let logprob = logprob.as_f64().ok_or_else(|| ServerError::Unfit(LACKS_LOGPROBS.to_owned()))?;
        piece.logprobs.push(logprob as f32);
    }
    piece.tokens.extend(tokens);
    Ok(())
}

/// Log-probabilities of a prompt's tokens but the first. They are recomputed, even where the prompt
/// is cached.
pub(super) async fn probe(http: &Http, model: Value, tokens: &[u32]) -> Result<Vec<f32>, ServerError> {
    let request = json!({"prompt": tokens, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 1});
    let reply = http.ask(PATH, &named(request, model), http.silence()).await?;
    let lacks = || {
        let remedy = "its reply has no log-probabilities of the prompt; it must heed `prompt_logprobs`";
        ServerError::Unfit(remedy.to_owned())
    };
    let reported = reply["choices"][0]["prompt_logprobs"].as_array().ok_or_else(lacks)?;
    if reported.len() != tokens.len() {
        return Err(lacks());
    }
    let of = |(reported, token): (&Value, &u32)| reported[token.to_string()]["logprob"].as_f64();
    let logprobs = reported.iter().zip(tokens).skip(1).map(|pair| Some(of(pair)? as f32));
    logprobs.collect::<Option<_>>().ok_or_else(lacks)
}

/// The likeliest next tokens at a temperature, with the server's numbers for them.
pub(super) async fn likeliest(
    http: &Http,
    model: Value,
    tokens: &[u32],
    temperature: f64,
) -> Result<Vec<(String, f64)>, ServerError> {
    let request = json!({
        "prompt": tokens, "max_tokens": 1, "temperature": temperature,
        "top_p": 1.0, "top_k": -1, "min_p": 0.0, "ignore_eos": true,
        "logprobs": 5, "return_tokens_as_token_ids": true,
    });
    let reply = http.ask(PATH, &named(request, model), http.silence()).await?;
    let reported = reply["choices"][0]["logprobs"]["top_logprobs"][0].as_object();
    let reported = reported.ok_or_else(|| ServerError::Unfit(LACKS_LOGPROBS.to_owned()))?;
    Ok(reported.iter().filter_map(|(token, logprob)| Some((token.clone(), logprob.as_f64()?))).collect())
}
