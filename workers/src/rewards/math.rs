//! `math`: 1 when the answer equals the right one, else 0. Symbols count, not letters:
//! `math/final_answer.rs` finds the answer, `token.rs` and `tree.rs` parse it, `value.rs` and
//! `equal.rs` compare.

use millrace_schemas::reward::math::MathSettings;
use millrace_schemas::reward::{RewardDone, RewardTask};

use super::{RewardError, answer, settings};

mod equal;
mod final_answer;
mod token;
mod tree;
mod value;

/// Bytes of an answer at most; no formula is as long.
const MAX_BYTES: usize = 4_096;

/// The score.
///
/// # Errors
/// The settings or the row are malformed. Any answer has a score.
pub(super) fn score(task: &RewardTask) -> Result<RewardDone, RewardError> {
    let settings: MathSettings = settings(task)?;
    let right = answer::right(task, settings.answer.as_deref(), &settings.answer_field)?;
    let text = answer::last(task)?;
    let found =
        if settings.boxed { final_answer::boxed(text).map(str::to_owned) } else { final_answer::last(text) };
    let Some(found) = found else {
        let reason = if settings.boxed {
            "the answer has no whole \\boxed{}"
        } else {
            "the answer has no number or formula"
        };
        return Ok(RewardDone { score: 0.0, reason: reason.to_owned() });
    };
    if equal(&right, &found) {
        return Ok(RewardDone { score: 1.0, reason: String::new() });
    }
    Ok(RewardDone { score: 0.0, reason: format!("it says {found}") })
}

/// Whether two answers are equal. A right answer that is itself in a box, or behind `####`, is
/// taken from there.
#[must_use]
pub fn equal(right: &str, given: &str) -> bool {
    let right = final_answer::boxed(right).or_else(|| Some(right.rsplit_once("####")?.1)).unwrap_or(right);
    if right.len() > MAX_BYTES || given.len() > MAX_BYTES {
        return same_words(right, given);
    }
    let (right, given) = (right.trim(), given.trim());
    if right == given {
        return !right.is_empty();
    }
    let (Some(right_tokens), Some(given_tokens)) = (token::tokens(right), token::tokens(given)) else {
        return same_words(right, given);
    };
    // BAC is not the angle ABC, though both are products of the same letters.
    let orders = (token::letters(&right_tokens), token::letters(&given_tokens));
    if matches!(&orders, (Some(right), Some(given)) if right != given) {
        return false;
    }
    let Some(expected) = tree::parse(right_tokens) else { return same_words(right, given) };
    let found = match tree::parse(given_tokens) {
        Some(given) => equal::equal(&expected, &given),
        None => same_words(right, given),
    };
    // Where the right answer has no variable, the letter in `15 m` is a unit.
    let number = || (!value::has_symbols(&expected)).then(|| token::unit::before_letters(given)).flatten();
    found || number().is_some_and(|number| equal(right, number))
}

fn same_words(right: &str, given: &str) -> bool {
    !letters(right).is_empty() && letters(right) == letters(given)
}

/// The comparable part of an answer in words: letters and digits, in lower case, without markup.
fn letters(text: &str) -> String {
    let mut plain = text.to_lowercase();
    for set in
        ["\\text", "\\mathrm", "\\mathbf", "\\textbf", "\\textit", "\\left", "\\right", "\\dfrac", "\\tfrac"]
    {
        plain = plain.replace(set, if set.ends_with("frac") { "\\frac" } else { "" });
    }
    let digits =
        |pair: (char, Option<char>)| pair.0.is_ascii_digit() && pair.1.is_some_and(|c| c.is_ascii_digit());
    // 4 2 is not 42.
    let words: Vec<&str> = plain.split_whitespace().collect();
    let apart = words.windows(2).any(|two| match (two[0].chars().last(), two[1].chars().next()) {
        (Some(last), next) => digits((last, next)),
        (None, _) => false,
    });
    if apart {
        return words.join(" ");
    }
    // The point of 1.5 is no full stop.
    let is_digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
    let kept = |(at, c): (usize, char)| {
        let (before, after) = (plain[..at].chars().next_back(), plain[at + c.len_utf8()..].chars().next());
        let is_point = c == '.' && is_digit(before) && is_digit(after);
        is_point || !(c.is_whitespace() || matches!(c, '$' | '{' | '}' | '.' | '"' | '(' | ')' | '~'))
    };
    plain.char_indices().filter(|one| kept(*one)).map(|(_, c)| c).collect()
}

/// Whether the final answer in a whole text is `right`.
#[cfg(test)]
fn equal_in(right: &str, text: &str) -> bool {
    final_answer::last(text).is_some_and(|given| equal(right, &given))
}

#[cfg(test)]
mod tests;
