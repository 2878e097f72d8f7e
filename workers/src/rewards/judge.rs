//! `judge`: a model judges the last answer, behind an OpenAI-compatible endpoint. Its verdict, from
//! `low` to `high`, scores 0 to 1. If it cannot be reached, fails, or returns no number, there is
//! no score.

use std::time::Duration;

use millrace_schemas::env_step::{Speaker, Utterance};
use millrace_schemas::reward::judge::JudgeSettings;
use millrace_schemas::reward::{RewardDone, RewardTask};
use serde_json::{Value, json};

use super::tools::JudgeTools;
use super::{RewardError, answer, settings};

/// Path of the chat endpoint.
const CHAT: &str = "/v1/chat/completions";
/// Characters of the end of its reply in an error.
const WORDS: usize = 300;

/// The score.
///
/// # Errors
/// The settings or the row cannot work, or the judge gave no verdict.
pub(super) async fn score(task: &RewardTask, tools: &JudgeTools) -> Result<RewardDone, RewardError> {
    let settings: JudgeSettings = settings(task)?;
    let question = question(task, &settings)?;
    let mut messages = vec![json!({ "role": "user", "content": question })];
    if !settings.system.is_empty() {
        messages.insert(0, json!({ "role": "system", "content": settings.system }));
    }
    let body = json!({
        "model": settings.model,
        "messages": messages,
        "temperature": settings.temperature,
        "max_tokens": settings.max_tokens,
        "stream": false,
    });
    let reply = tools.ask(CHAT, &body, Duration::from_millis(settings.timeout_ms)).await?;
    let words = words(&reply, settings.max_tokens).map_err(RewardError::Verdict)?;
    let verdict = verdict(words, &settings).map_err(RewardError::Verdict)?;
    let score = (verdict - settings.low) / (settings.high - settings.low);
    Ok(RewardDone { score, reason: format!("the judge says {verdict}") })
}

/// The judge's prompt. Text that replaces a name is not searched again, so an answer cannot contain
/// a name.
fn question(task: &RewardTask, settings: &JudgeSettings) -> Result<String, RewardError> {
    let answer = answer::last(task)?;
    let asked = task.conversation.iter().find(|utterance| utterance.speaker == Speaker::Environment);
    let mut text = String::new();
    let mut rest = settings.template.as_str();
    while let Some(at) = rest.find('{') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        let Some(end) = rest.find('}') else { break };
        let filled = match &rest[1..end] {
            "question" => Some(asked.map_or_else(String::new, |utterance| utterance.text.clone())),
            "answer" => Some(answer.to_owned()),
            "conversation" => Some(conversation(&task.conversation)),
            "right" => Some(answer::right(task, None, &settings.answer_field)?),
            "low" => Some(settings.low.to_string()),
            "high" => Some(settings.high.to_string()),
            _ => None,
        };
        let (filled, used) = filled.map_or_else(|| ("{".to_owned(), 1), |filled| (filled, end + 1));
        text.push_str(&filled);
        rest = &rest[used..];
    }
    text.push_str(rest);
    Ok(text)
}

fn conversation(utterances: &[Utterance]) -> String {
    let line = |utterance: &Utterance| match utterance.speaker {
        Speaker::Environment => format!("Environment: {}", utterance.text),
        Speaker::Policy => format!("Policy: {}", utterance.text),
    };
    utterances.iter().map(line).collect::<Vec<_>>().join("\n\n")
}

/// The text of a whole reply. Of one that was cut off the last number is none that the judge decided on: `Score: 1`
/// may be the begin of `Score: 10`, or what it argued against.
fn words(reply: &Value, max_tokens: u64) -> Result<&str, String> {
    if reply.pointer("/choices/0/finish_reason").and_then(Value::as_str) == Some("length") {
        return Err(format!("its reply was cut off at max_tokens={max_tokens}; raise settings.max_tokens"));
    }
    let words = reply.pointer("/choices/0/message/content").and_then(Value::as_str);
    words.ok_or_else(|| "its reply has no text".to_owned())
}

/// The number after the last of the words that announce it.
fn verdict(words: &str, settings: &JudgeSettings) -> Result<f64, String> {
    let all: Vec<char> = words.trim_end().chars().collect();
    let end: String = all[all.len().saturating_sub(WORDS)..].iter().collect();
    let (_, after) = words
        .rsplit_once(settings.score_after.trim())
        .ok_or_else(|| format!("it does not say {:?}: {end}", settings.score_after))?;
    let after = after.trim_start_matches([' ', '*', ':', '\t', '"', '[', '{', '(']);
    let length =
        after.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-' | '+'))).unwrap_or(after.len());
    let number = after[..length].trim_end_matches(['.', '-']);
    let number: f64 =
        number.parse().map_err(|_| format!("no number follows {:?}: {end}", settings.score_after))?;
    let (low, high) = (settings.low, settings.high);
    if (low..=high).contains(&number) {
        Ok(number)
    } else {
        Err(format!("{number} is not within {low} to {high}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_a_number_within_its_bounds_or_none() {
        let read = |words: &str| verdict(words, &JudgeSettings::default());
        assert_eq!(read("Score: 3, no: it is better.\n**Score: 7.5**"), Ok(7.5));
        assert_eq!(read("Score:10."), Ok(10.0));
        assert_eq!(read("Score: **8**/10"), Ok(8.0));
        for none in [
            "",
            "7",
            "Score",
            "Score: seven",
            "Score: 11",
            "Score: -1",
            "Score: NaN",
            "Score: inf",
            "score: 7",
            "Score: 1.2.3",
        ] {
            assert!(read(none).is_err(), "{none}");
        }
    }

    #[test]
    fn a_reply_that_was_cut_off_is_no_verdict() {
        let reply = |finish: &str| json!({ "choices": [{ "message": { "content": "Score: 1" }, "finish_reason": finish }] });
        assert_eq!(words(&reply("stop"), 9), Ok("Score: 1"));
        for cut in [reply("length"), json!({ "choices": [{ "finish_reason": "length", "message": {} }] })] {
            let why = words(&cut, 9).unwrap_err();
            assert!(why.contains("max_tokens=9") && why.contains("raise"), "{why}");
        }
    }
}
