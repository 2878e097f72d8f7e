//! A rollout for programs: one JSON object.

use millrace_schemas::RunSpec;
use millrace_schemas::generate::{Finish, Segment};
use serde::Serialize;
use serde_json::json;

use super::content::{Content, Part};
use super::replay::{Fate, Played};

/// One rollout.
#[derive(Debug, Serialize)]
struct Row<'a> {
    run: &'a str,
    /// As tasks and dead letters name it: `g41r3a0`.
    rollout: String,
    group: u64,
    index: u32,
    attempt: u32,
    evaluation: bool,
    /// `null` for a run with one domain.
    domain: Option<&'a str>,
    prompt: u64,
    outcome: serde_json::Value,
    /// Versions that sampled it.
    versions: Vec<u64>,
    reward: Option<f64>,
    scores: Vec<Score<'a>>,
    success: bool,
    /// How many of the messages are of the rollout that it continues.
    inherited: usize,
    messages: Vec<Message<'a>>,
    /// Why some of it cannot be read.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    missing: &'a [String],
}

#[derive(Debug, Serialize)]
struct Score<'a> {
    rule: &'a str,
    weight: f64,
    score: Option<f64>,
    reason: &'a str,
}

#[derive(Debug, Serialize)]
#[serde(tag = "speaker", rename_all = "snake_case")]
enum Message<'a> {
    /// A step of the environment; 0 is the reset.
    Environment { step: u32, text: Option<&'a str>, tokens: &'a [u32], reward: f64, valid: bool, done: bool },
    /// A turn of the policy, from 1.
    Policy {
        turn: u32,
        text: Option<&'a str>,
        tokens: &'a [u32],
        /// Of each token, under the distribution that it was drawn from.
        logprobs: &'a [f32],
        /// Of each token before unlikely ones were cut off; empty if none were.
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        uncut_logprobs: &'a [f32],
        segments: &'a [Segment],
        finish: Finish,
    },
}

/// A rollout as a line.
///
/// # Errors
/// A number in it is none that JSON has.
pub(super) fn line(
    spec: &RunSpec,
    played: &Played,
    content: &Content,
    texts: &[Option<String>],
) -> serde_json::Result<String> {
    let domain = spec.part(played.domain);
    let scores = domain.rewards.iter().zip(&played.scores).zip(0..).map(|((reward, score), at)| Score {
        rule: reward.pool.as_ref().map_or(reward.rule.name(), |pool| pool.as_str()),
        weight: reward.weight,
        score: *score,
        reason: content.scores.get(&at).map_or("", |done| done.reason.as_str()),
    });
    let row = Row {
        run: spec.name.as_str(),
        rollout: played.id.to_string(),
        group: played.id.group,
        index: played.id.index,
        attempt: played.id.attempt,
        evaluation: played.evaluate,
        domain: domain.name.map(millrace_schemas::ids::DomainName::as_str),
        prompt: played.prompt,
        outcome: outcome(played.fate),
        versions: played.versions.iter().map(|version| version.0).collect(),
        reward: played.reward(&domain.reward_weights()),
        scores: scores.collect(),
        success: played.success,
        inherited: content.inherited,
        messages: content
            .parts
            .iter()
            .zip(texts)
            .map(|(part, text)| message(part, text.as_deref()))
            .collect(),
        missing: &content.missing,
    };
    Ok(harmless(&serde_json::to_string(&row)?))
}

fn outcome(fate: Fate) -> serde_json::Value {
    match fate {
        Fate::Trained { version, staleness } => {
            json!({ "state": "trained", "version": version, "staleness": staleness })
        }
        Fate::Dropped { reason } => json!({ "state": "dropped", "reason": reason }),
        Fate::Evaluated { version } => json!({ "state": "evaluated", "version": version }),
        Fate::Waits => json!({ "state": "waits" }),
    }
}

fn message<'a>(part: &'a Part, text: Option<&'a str>) -> Message<'a> {
    match part {
        Part::Environment { step, done } => Message::Environment {
            step: *step,
            text,
            tokens: &done.observation,
            reward: done.reward,
            valid: done.valid,
            done: done.done,
        },
        Part::Policy { turn, done } => Message::Policy {
            turn: *turn,
            text,
            tokens: &done.tokens,
            logprobs: &done.logprobs,
            uncut_logprobs: &done.uncut_logprobs,
            segments: &done.segments,
            finish: done.finish,
        },
    }
}

/// Escapes the control characters that JSON lets through. They are in strings only.
fn harmless(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_control() { out.push_str(&format!("\\u{:04x}", u32::from(c))) } else { out.push(c) }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_is_left_and_the_text_is_the_same() {
        let text = "\u{1b}[2J\u{9b}\u{7f}é";
        let line = harmless(&serde_json::to_string(text).unwrap());
        assert!(!line.chars().any(char::is_control), "{line:?}");
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
    }
}
