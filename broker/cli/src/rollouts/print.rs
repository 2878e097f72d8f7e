//! A rollout for people: lines of text, in which nothing that a model wrote moves the cursor.

use std::fmt::Write;

use millrace_schemas::generate::Finish;
use millrace_schemas::{PolicyVersion, RunSpec};

use super::content::{Content, Part};
use super::replay::{Fate, Played};
use crate::term::thousands;

/// Characters shown of a longer text: of its beginning and of its end.
const SHOWN: (usize, usize) = (1_400, 600);
/// Parts shown of a longer rollout: of its beginning and of its end.
const PARTS: (usize, usize) = (40, 20);

/// Prints one rollout. `texts` has the text of each of its parts, `None` where there is none.
pub(super) fn lines(
    spec: &RunSpec,
    played: &Played,
    content: &Content,
    texts: &[Option<String>],
    full: bool,
) -> String {
    let mut out = head(spec, played, content);
    let cut = (!full).then(|| gap(content.parts.len(), PARTS)).flatten();
    for (at, (part, text)) in content.parts.iter().zip(texts).enumerate() {
        if let Some((from, to)) = cut.filter(|(from, to)| (*from..*to).contains(&at)) {
            if at == from {
                let _ = writeln!(out, "  [{} turns and observations more; --full shows them]", to - from);
            }
            continue;
        }
        if content.inherited > 0 && at == content.inherited {
            let _ = writeln!(out, "  [what is above is of an earlier rollout, which this one continues]");
        }
        part_lines(&mut out, part, text.as_deref(), full);
    }
    for reason in &content.missing {
        let _ = writeln!(out, "  [missing: {}]", escaped(reason));
    }
    out
}

/// `g41r3a0: trained in v6, staleness 1; reward 1 (env_return 1); success`, and where it came from.
fn head(spec: &RunSpec, played: &Played, content: &Content) -> String {
    let Played { id, .. } = played;
    let domain = spec.part(played.domain);
    let reward = played.reward(&domain.reward_weights());
    let reward = reward.map_or_else(|| "no reward".to_owned(), |reward| format!("reward {}", number(reward)));
    let success = if played.success { "success" } else { "no success" };
    let mut out = format!("{id}: {}; {reward}; {success}\n", fate_words(played.fate));
    let of = domain.name.map_or(String::new(), |name| format!(" of {name}"));
    let split = if played.evaluate { "held-out prompt" } else { "prompt" };
    let turns = content.parts[content.inherited..].iter().filter_map(|part| match part {
        Part::Policy { done, .. } => Some(done.tokens.len() as u64),
        Part::Environment { .. } => None,
    });
    let (turns, tokens) = turns.fold((0u64, 0), |(turns, sum), tokens| (turns + 1, sum + tokens));
    let versions = played.versions.iter().map(PolicyVersion::to_string).collect::<Vec<_>>().join(", ");
    let sampled = if versions.is_empty() { "nothing".to_owned() } else { versions };
    let _ = writeln!(
        out,
        "  {split} {}{of}; {} sampled in {} by {sampled}",
        played.prompt,
        counted(tokens, "token"),
        counted(turns, "turn")
    );
    for ((reward, score), at) in domain.rewards.iter().zip(&played.scores).zip(0..) {
        let name = reward.pool.as_ref().map_or(reward.rule.name(), |pool| pool.as_str());
        let weight = if reward.weight == 1.0 { String::new() } else { format!(" × {}", reward.weight) };
        let score = score.map_or_else(|| "no score".to_owned(), number);
        let remark = content.scores.get(&at).map_or("", |done| done.reason.as_str());
        let remark = if remark.is_empty() { String::new() } else { format!(": {}", escaped(remark)) };
        let _ = writeln!(out, "  {name} {score}{weight}{}", remark.replace('\n', " "));
    }
    out
}

fn fate_words(fate: Fate) -> String {
    match fate {
        Fate::Trained { version, staleness } => format!("trained in {version}, staleness {staleness}"),
        Fate::Dropped { reason } => format!("dropped, {reason}"),
        Fate::Evaluated { version } => format!("evaluation of {version}"),
        Fate::Waits => "scored, waits for its batch".to_owned(),
    }
}

fn part_lines(out: &mut String, part: &Part, text: Option<&str>, full: bool) {
    let (label, tokens, remark) = match part {
        Part::Environment { step, done } => {
            let reward = *step > 0 && (done.reward != 0.0 || done.done);
            let reward = reward.then(|| format!("reward {}", number(done.reward)));
            let wrong = (!done.valid).then(|| "no valid action".to_owned());
            let over = done.done.then(|| "the end".to_owned());
            let remarks: Vec<String> = [reward, wrong, over].into_iter().flatten().collect();
            ("env", &done.observation, remarks.join(", "))
        }
        Part::Policy { done, .. } => {
            // An action of one token is not cut short.
            let cut = done.finish == Finish::Length && done.tokens.len() > 1;
            let cut = if cut { "cut at its most tokens" } else { "" };
            ("model", &done.tokens, cut.to_owned())
        }
    };
    let remark = if remark.is_empty() { remark } else { format!("[{remark}]") };
    let ids;
    let text = match text {
        Some(text) => text,
        None => {
            ids = tokens.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            &format!("tokens {ids}")
        }
    };
    let text = if full { text.to_owned() } else { shortened(text) };
    let mut label = label;
    if !text.is_empty() {
        for line in escaped(&text).split('\n') {
            let _ = writeln!(out, "{}", format!("  {label:<5} | {line}").trim_end());
            label = "";
        }
    }
    if !remark.is_empty() {
        let _ = writeln!(out, "  {label:<5} | {remark}");
    }
}

/// The text, or its beginning and its end with a note of what is left out.
fn shortened(text: &str) -> String {
    let length = text.chars().count();
    let Some((from, to)) = gap(length, SHOWN) else { return text.to_owned() };
    let start: String = text.chars().take(from).collect();
    let end: String = text.chars().skip(to).collect();
    format!("{start}\n[{} characters more; --full shows them]\n{end}", thousands((to - from) as u64))
}

/// What is left out of so many where the first and the last are shown.
fn gap(length: usize, (first, last): (usize, usize)) -> Option<(usize, usize)> {
    (length > first + last).then(|| (first, length - last))
}

/// Text without control characters but line breaks and tabs, and without marks that reorder a line:
/// they are written as Rust writes them, `\u{1b}`.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let reorders =
            matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}');
        let shown = c == '\n' || c == '\t' || !(c.is_control() || reorders);
        if shown { out.push(c) } else { out.extend(c.escape_default()) }
    }
    out
}

/// As short as it can be said: `1`, `0.25`, `-0.333`.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

fn counted(n: u64, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{} {what}s", thousands(n)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_model_wrote_cannot_move_the_cursor() {
        assert_eq!(escaped("a\u{1b}[2J\r\u{9b}b\u{202e}c\td\ne"), "a\\u{1b}[2J\\r\\u{9b}b\\u{202e}c\td\ne");
    }

    #[test]
    fn a_long_text_is_cut_in_its_middle_and_says_by_how_much() {
        let text = format!("{}{}{}", "a".repeat(1_400), "é".repeat(1_500), "z".repeat(600));
        let short = shortened(&text);
        assert!(short.contains("[1,500 characters more; --full shows them]"), "{short}");
        assert!(short.starts_with("aaa") && short.ends_with("zzz") && !short.contains('é'));
        assert_eq!(shortened("short"), "short");
    }

    #[test]
    fn numbers_are_short() {
        let values = [1.0, 0.25, -1.0 / 3.0, 0.0, -0.0];
        assert_eq!(values.map(number), ["1", "0.25", "-0.333", "0", "0"]);
    }
}
