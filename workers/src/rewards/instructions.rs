//! `instructions`: whether the last answer follows what it was asked to look like (IFEval: Zhou et
//! al. 2023, whose strict and loose readings these are).

use millrace_schemas::reward::instructions::{Bounds, Instruction, InstructionSettings, instructions_of};
use millrace_schemas::reward::{RewardDone, RewardTask};

use super::{RewardError, answer, settings};

/// The score.
///
/// # Errors
/// The settings or the row cannot work.
pub(super) fn score(task: &RewardTask) -> Result<RewardDone, RewardError> {
    let settings: InstructionSettings = settings(task)?;
    let (fixed, field) = (&settings.instructions, settings.instructions_field.as_ref());
    let instructions = answer::demanded(task, fixed, field, instructions_of)?;
    let text = answer::last(task)?;
    let readings = if settings.loose { loose(text) } else { vec![text.to_owned()] };
    let is_broken = |one: &&Instruction| !readings.iter().any(|text| follows(one, text));
    let broken: Vec<&Instruction> = instructions.iter().filter(is_broken).collect();
    let share = (instructions.len() - broken.len()) as f64 / instructions.len() as f64;
    let reason = broken
        .first()
        .map_or_else(String::new, |one| format!("it does not follow {}", serde_json::json!(one)));
    Ok(RewardDone { score: if settings.partial { share } else { share.floor() }, reason })
}

/// The text as it is; without its first line, its last, or both; each with its asterisks and
/// without.
fn loose(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let n = lines.len();
    let parts = [(0, n), (1, n), (0, n.saturating_sub(1)), (1, n.saturating_sub(1))];
    let parts = parts.map(|(from, to)| lines.get(from..to).unwrap_or_default().join("\n").trim().to_owned());
    let plain = parts.clone().map(|part| part.replace('*', ""));
    [text.to_owned()].into_iter().chain(parts).chain(plain).filter(|part| !part.is_empty()).collect()
}

/// Whether a text follows an instruction. One without words follows none.
fn follows(instruction: &Instruction, text: &str) -> bool {
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return false;
    }
    match instruction {
        Instruction::Words { count } => holds(*count, text.split_whitespace().count()),
        Instruction::Sentences { count } => holds(*count, sentences(text)),
        Instruction::Paragraphs { count } => holds(*count, paragraphs(text)),
        Instruction::Lines { count } => holds(*count, lines(text).count()),
        Instruction::Bullets { count } => holds(*count, lines(text).filter(|line| is_bullet(line)).count()),
        Instruction::Keywords { words, count } => words.iter().all(|word| holds(*count, occurs(text, word))),
        Instruction::Forbidden { words } => words.iter().all(|word| occurs(text, word) == 0),
        Instruction::Letter { letter, count } => holds(*count, letters(text, *letter)),
        Instruction::LowerCase {} => !text.chars().any(char::is_uppercase),
        Instruction::UpperCase {} => !text.chars().any(char::is_lowercase),
        Instruction::CapitalWords { count } => holds(*count, capital_words(text)),
        Instruction::StartsWith { text: start } => {
            trimmed.to_lowercase().starts_with(&start.trim().to_lowercase())
        }
        Instruction::EndsWith { text: end } => {
            trimmed.trim_end_matches('"').to_lowercase().ends_with(&end.trim().to_lowercase())
        }
        Instruction::Json {} => is_json(trimmed),
        Instruction::Quoted {} => trimmed.len() > 1 && trimmed.starts_with('"') && trimmed.ends_with('"'),
        Instruction::NoCommas {} => !text.contains([',', '，', '、']),
        Instruction::Title {} => between(text, "<<", ">>") > 0,
        Instruction::Placeholders { count } => holds(*count, between(text, "[", "]")),
        Instruction::Highlights { count } => holds(*count, highlights(text)),
    }
}

fn holds(count: Bounds, n: usize) -> bool {
    let n = n as u64;
    count.at_least.is_none_or(|least| n >= least) && count.at_most.is_none_or(|most| n <= most)
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty())
}

/// Sentences: words up to a mark that ends one, and the rest.
fn sentences(text: &str) -> usize {
    let ends = |word: &&str| {
        let word = word.trim_end_matches(['"', '\'', ')', '”', '’', '*']);
        word.ends_with(['.', '!', '?', '。', '！', '？'])
    };
    let ended = text.split_whitespace().filter(ends).count();
    let rest = text.split_whitespace().last().is_some_and(|word| !ends(&word));
    ended + usize::from(rest)
}

fn paragraphs(text: &str) -> usize {
    let mut count = 0;
    let mut within = false;
    for line in text.lines() {
        let empty = line.trim().is_empty();
        count += usize::from(!empty && !within);
        within = !empty;
    }
    count
}

fn is_bullet(line: &str) -> bool {
    ["* ", "- ", "• "].iter().any(|mark| line.starts_with(mark))
}

/// How often a word or phrase occurs in any case, not as a part of another word.
fn occurs(text: &str, word: &str) -> usize {
    let (text, word) = (text.to_lowercase(), word.trim().to_lowercase());
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let alone = |(at, _): &(usize, &str)| {
        let (before, after) = (text[..*at].chars().next_back(), text[at + word.len()..].chars().next());
        // In scripts that do not separate words, as in Chinese, any place counts.
        let apart = word.is_ascii();
        !apart || !(part(before) || part(after))
    };
    text.match_indices(&word).filter(alone).count()
}

fn letters(text: &str, letter: char) -> usize {
    let lower = |c: char| c.to_lowercase().collect::<String>();
    text.chars().filter(|c| lower(*c) == lower(letter)).count()
}

fn capital_words(text: &str) -> usize {
    let is_capital =
        |word: &&str| word.chars().any(char::is_alphabetic) && !word.chars().any(char::is_lowercase);
    text.split_whitespace().filter(is_capital).count()
}

fn is_json(text: &str) -> bool {
    let inner = text.strip_prefix("```json").or_else(|| text.strip_prefix("```"));
    let inner = inner.and_then(|text| text.trim_end().strip_suffix("```")).unwrap_or(text);
    serde_json::from_str::<serde_json::Value>(inner.trim()).is_ok()
}

/// The number of non-empty parts between two marks on one line.
fn between(text: &str, open: &str, close: &str) -> usize {
    let mut count = 0;
    for line in text.lines() {
        let mut rest = line;
        while let Some((_, after)) = rest.split_once(open) {
            let Some((inner, next)) = after.split_once(close) else { break };
            count += usize::from(!inner.trim().is_empty());
            rest = next;
        }
    }
    count
}

/// Parts within asterisks, one or two on either side.
fn highlights(text: &str) -> usize {
    let doubled = text.replace("**", "\u{1}");
    let plain = doubled.lines().map(|line| line.trim_start().strip_prefix("* ").unwrap_or(line));
    plain.map(|line| between(line, "\u{1}", "\u{1}") + between(&line.replace('\u{1}', ""), "*", "*")).sum()
}

#[cfg(test)]
mod tests;
