//! SGLang, by its own `/generate` with `input_ids`: its OpenAI calls return no ids. At a boundary
//! the request is aborted by its id, and the reply then has the tokens sampled so far.
//!
//! It needs no flag for ids and log-probabilities: `return_logprob` asks for both.
//! `SGLANG_RETURN_ORIGINAL_LOGPROB` must not be set, or log-probabilities are of temperature 1.
//! With `--enable-deterministic-inference` it heeds the seed. Each reply carries the
//! `weight_version` under which `/update_weights_from_disk` was called last.

use std::time::Duration;

use millrace_schemas::{Stage, limits};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::http::Http;
use super::{Ask, Piece, ServerError};

const PATH: &str = "/generate";
/// Time for the reply of an aborted request.
const ABORTED: Duration = Duration::from_secs(10);
const LACKS: &str = "its reply has no `meta_info.output_token_logprobs`; it must heed `return_logprob`";
const RAW: &str = "start SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB";

/// Samples a piece. The tokens sampled by the boundary are kept.
pub(super) async fn sample(
    http: &Http,
    ask: &Ask<'_>,
    boundary: &CancellationToken,
) -> Result<Piece, ServerError> {
    ask.refuse_cuts("SGLang")?;
    ask.refuse_unscaled(RAW)?;
    let request = request(ask);
    let longest = Duration::from_millis(limits::attempt_ms(Stage::Generate));
    let reply = http.ask(PATH, &request, longest);
    tokio::pin!(reply);
    let reply = tokio::select! {
        biased;
        reply = &mut reply => reply?,
        silent = until_silent(http) => return Err(silent),
        () = boundary.cancelled() => {
            // A server that does not know the request has finished it.
            let _ = http.post("/abort_request", &json!({"rid": ask.name}), ABORTED).await;
            match tokio::time::timeout(ABORTED, reply).await {
                Ok(Ok(reply)) => reply,
                // It never started, or the server does not report how far it came: those tokens are
                // sampled again.
                Ok(Err(_)) | Err(_) => return Ok(Piece::none()),
            }
        }
    };
    read(&reply)
}

fn request(ask: &Ask<'_>) -> Value {
    let mut request = json!({
        "rid": ask.name,
        "input_ids": ask.context,
        "sampling_params": {
            "max_new_tokens": ask.max_new_tokens,
            "temperature": ask.sampling.temperature,
            "top_p": 1.0, "top_k": -1, "min_p": 0.0,
            "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
            // `ignore_eos` would make it ignore these, too. After an end token of the model's own,
            // another piece continues the turn.
            "stop_token_ids": ask.stop_tokens, "stop": ask.sampling.stop_strings,
            "skip_special_tokens": false, "no_stop_trim": true,
        },
        "return_logprob": true, "top_logprobs_num": 0, "return_text_in_logprobs": false,
        "stream": false,
    });
    if let Some(seed) = ask.seed {
        request["sampling_params"]["sampling_seed"] = seed.cast_signed().unsigned_abs().into();
    }
    request
}

/// Waits until the server has nothing in flight. Its replies come whole, so silence alone proves
/// nothing.
async fn until_silent(http: &Http) -> ServerError {
    loop {
        tokio::time::sleep(http.silence() / 2).await;
        match http.is_well("/health_generate", http.silence() / 2).await {
            Ok(()) => {}
            Err(error) => return ServerError::Away(format!("it generates nothing: {error}")),
        }
    }
}

fn read(reply: &Value) -> Result<Piece, ServerError> {
    let meta = &reply["meta_info"];
    let finish = &meta["finish_reason"];
    if finish["matched"].as_str().is_some_and(|matched| matched.contains("NaN")) {
        // The server writes a stop token over the last one then.
        return Err(ServerError::OtherWeights(format!("it computes no numbers: {finish}")));
    }
    let reported = meta["output_token_logprobs"].as_array();
    let reported = match reported {
        Some(reported) => reported.as_slice(),
        None if finish["type"] == "abort" => &[],
        None => return Err(ServerError::Unfit(LACKS.to_owned())),
    };
    let mut piece = Piece {
        cached: meta["cached_tokens"].as_u64().unwrap_or(0) as u32,
        label: meta["weight_version"].as_str().map(str::to_owned),
        prompt: meta["prompt_tokens"].as_u64().map(|tokens| tokens as usize),
        ..Piece::none()
    };
    for pair in reported {
        let (logprob, token) = (pair[0].as_f64(), pair[1].as_u64().and_then(|id| u32::try_from(id).ok()));
        let (Some(logprob), Some(token)) = (logprob, token) else {
            return Err(ServerError::malformed(&format!("{pair} is no [logprob, token]")));
        };
        piece.tokens.push(token);
        piece.logprobs.push(logprob as f32);
    }
    if let Some(count) = meta["completion_tokens"].as_u64().filter(|count| *count != reported.len() as u64) {
        let found = reported.len();
        return Err(ServerError::malformed(&format!(
            "completion_tokens={count} and logprobs={found} must agree"
        )));
    }
    Ok(piece)
}

/// Log-probabilities of a prompt's tokens but the first.
pub(super) async fn probe(http: &Http, tokens: &[u32]) -> Result<Vec<f32>, ServerError> {
    let request = json!({
        "input_ids": tokens,
        "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
        "return_logprob": true, "logprob_start_len": 0, "return_text_in_logprobs": false,
    });
    let reply = http.ask(PATH, &request, http.silence()).await?;
    let lacks = || {
        let remedy = "its reply has no `meta_info.input_token_logprobs`; it must heed `logprob_start_len`";
        ServerError::Unfit(remedy.to_owned())
    };
    let reported = reply["meta_info"]["input_token_logprobs"].as_array().ok_or_else(lacks)?;
    let of = |(reported, token): (&Value, &u32)| {
        (reported[1].as_u64() == Some(u64::from(*token)))
            .then(|| reported[0].as_f64().map(|p| p as f32))
            .flatten()
    };
    if reported.len() != tokens.len() {
        return Err(lacks());
    }
    reported.iter().zip(tokens).skip(1).map(of).collect::<Option<_>>().ok_or_else(lacks)
}

/// The likeliest next tokens at a temperature, with the server's numbers for them.
pub(super) async fn likeliest(
    http: &Http,
    tokens: &[u32],
    temperature: f64,
) -> Result<Vec<(String, f64)>, ServerError> {
    let request = json!({
        "input_ids": tokens,
        "sampling_params": {"max_new_tokens": 1, "temperature": temperature},
        "return_logprob": true, "top_logprobs_num": 5, "return_text_in_logprobs": false,
    });
    let reply = http.ask(PATH, &request, http.silence()).await?;
    let reported = reply["meta_info"]["output_top_logprobs"][0].as_array();
    let reported = reported.ok_or_else(|| ServerError::Unfit(LACKS.to_owned()))?;
    Ok(reported.iter().filter_map(|pair| Some((pair[1].as_u64()?.to_string(), pair[0].as_f64()?))).collect())
}
