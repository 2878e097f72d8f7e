//! Which part of a text is the answer.

use super::token::{Token, tokens};
use super::tree::parse;

/// Words that come right before an answer, in lower case.
const BEFORE: [&str; 4] = ["####", "answer is", "answer:", "answer ="];

/// Short words of sentences. The parser would read them as products of variables.
const PROSE: [&str; 44] = [
    "so", "we", "as", "it", "is", "of", "the", "if", "for", "to", "on", "an", "at", "by", "be", "are", "was",
    "not", "but", "you", "all", "any", "can", "has", "its", "our", "too", "yes", "no", "he", "she", "who",
    "how", "out", "up", "us", "my", "do", "did", "his", "her", "had", "may", "let",
];

/// The content of the last complete `\boxed{…}`.
pub(super) fn boxed(text: &str) -> Option<&str> {
    let starts = text.rmatch_indices("boxed{").chain(text.rmatch_indices("fbox{"));
    let mut starts: Vec<usize> = starts.map(|(at, word)| at + word.len()).collect();
    starts.sort_unstable();
    starts.into_iter().rev().find_map(|start| closed(&text[start..]))
}

/// The text up to the brace that closes one before it.
fn closed(text: &str) -> Option<&str> {
    let mut depth = 1;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '{' if !escaped => depth += 1,
            '}' if !escaped => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&text[..at]);
        }
        escaped = c == '\\' && !escaped;
    }
    None
}

/// The last answer: in a box, or else after words that announce one: a formula, the whole line, or
/// its first number; or else the last formula, or else the last number.
pub(super) fn last(text: &str) -> Option<String> {
    if let Some(inner) = boxed(text) {
        return Some(inner.to_owned());
    }
    if text.contains("\\boxed{") {
        // It was cut off in the middle of the answer.
        return None;
    }
    if let Some(line) = announced(text) {
        let plain = || is_expression(line).then(|| line.to_owned()).or_else(|| numbers(line).next());
        return Some(formula(line).or_else(plain).unwrap_or_else(|| line.to_owned()));
    }
    formula(text).or_else(|| numbers(text).last())
}

/// Whether a whole line without dollars is more than a number, and no sentence.
fn is_expression(line: &str) -> bool {
    let is_prose = |word: &str| {
        PROSE.contains(&word.trim_matches(|c: char| !c.is_alphanumeric()).to_ascii_lowercase().as_str())
    };
    let joins = |token: &Token| !matches!(token, Token::Number(_) | Token::Letter(_) | Token::Sign(' '));
    let words = !line.split_whitespace().any(is_prose);
    words && tokens(line).is_some_and(|tokens| tokens.iter().any(joins) && parse(tokens).is_some())
}

/// The rest of the line after the last words that announce an answer.
fn announced(text: &str) -> Option<&str> {
    let lower = text.to_ascii_lowercase();
    let ends = BEFORE.iter().filter_map(|word| Some(lower.rfind(word)? + word.len()));
    let rest = text[ends.max()?..].trim_start_matches([':', ' ', '*']);
    let line = rest.lines().next()?.trim().trim_end_matches(['.', '*', ' ']);
    (!line.is_empty()).then_some(line)
}

/// The text between the last pair of dollars, `\(` and `\)`, or `\[` and `\]`.
fn formula(text: &str) -> Option<String> {
    let between = |open: &str, close: &str| {
        let end = text.rfind(close)?;
        let start = text[..end].rfind(open)? + open.len();
        let inner = text[start..end].trim();
        (!inner.is_empty()).then(|| (start, inner.to_owned()))
    };
    let pairs = [between("$", "$"), between("$$", "$$"), between("\\(", "\\)"), between("\\[", "\\]")];
    pairs.into_iter().flatten().max_by_key(|(start, _)| *start).map(|(_, inner)| inner)
}

/// The numbers, each with its sign, exponent, percent and fraction.
fn numbers(text: &str) -> impl Iterator<Item = String> {
    let chars: Vec<char> = text.chars().collect();
    let mut at = 0;
    std::iter::from_fn(move || {
        let digit = |at: usize| chars.get(at).is_some_and(char::is_ascii_digit);
        let starts = |at: &usize| digit(*at) || (chars[*at] == '.' && digit(*at + 1));
        let start = (at..chars.len()).find(starts)?;
        at = end_of_number(&chars, start);
        let signed = start > 0 && matches!(chars[start - 1], '-' | '−');
        let alone = start < 2 || !chars[start - 2].is_alphanumeric();
        let sign = if signed && alone { "-" } else { "" };
        let percent = if chars.get(at) == Some(&'%') { "%" } else { "" };
        Some(format!("{sign}{}{percent}", chars[start..at].iter().collect::<String>()))
    })
}

fn end_of_number(chars: &[char], start: usize) -> usize {
    let digit = |at: usize| chars.get(at).is_some_and(char::is_ascii_digit);
    let mut at = start;
    loop {
        let signed = usize::from(matches!(chars.get(at + 1), Some('-' | '+')));
        match chars.get(at) {
            Some(c) if c.is_ascii_digit() || matches!(c, ',' | '.' | '/') => at += 1,
            Some('e' | 'E') if at > start && digit(at - 1) && digit(at + 1 + signed) => at += 1 + signed,
            _ => break,
        }
    }
    while !digit(at - 1) {
        at -= 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_answer_is_found() {
        for (text, answer) in [
            (r"so \boxed{1} or \boxed{\frac{1}{2}} it is", Some(r"\frac{1}{2}")),
            (r"\boxed{\{1\}}", Some(r"\{1\}")),
            (r"\boxed{3} but \boxed{4", Some("3")),
            ("9 * 2 = $18 a day.\n#### 18", Some("18")),
            ("The final answer is: $2.5$.", Some("2.5")),
            ("The answer is 7 apples.", Some("7")),
            ("The answer is even.", Some("even")),
            ("Hence $p = 3$ as wanted", Some("p = 3")),
            ("then $$x$$ and $y$", Some("y")),
            ("48 + 24 = 1,072 clips.", Some("1,072")),
            ("x = -3", Some("-3")),
            ("from 5-3", Some("3")),
            ("a third, 1/3, or 33%", Some("33%")),
            ("so 3 and \\boxed{4", None),
            ("no", None),
        ] {
            assert_eq!(last(text).as_deref(), answer, "{text}");
        }
    }

    #[test]
    fn an_announced_formula_without_dollars_is_whole() {
        for (text, answer) in [
            (r"Answer: \frac{1}{2}", r"\frac{1}{2}"),
            (r"Answer: \sqrt{3}", r"\sqrt{3}"),
            ("The answer is x^2.", "x^2"),
            ("The answer is (1, 2)", "(1, 2)"),
            (r"The answer is 2\pi.", r"2\pi"),
            ("**Answer:** x = -3", "x = -3"),
            ("The answer is -3", "-3"),
            ("The answer is 2xy + x", "2xy + x"),
            ("The answer is 1 and 2", "1 and 2"),
            ("The answer is 2 million", "2 million"),
            (r"#### \frac12", r"\frac12"),
            ("Answer: 1e5", "1e5"),
            ("Answer: 2.5e-3 of it", "2.5e-3"),
            ("The answer is 18 dollars for 2 days", "18"),
            ("The answer is 42, which is greater than 40", "42"),
            ("The answer is 42, so we win 2", "42"),
            ("The answer is 3/4 of the cake.", "3/4"),
            ("The answer is 5 (five).", "5"),
            ("The answer is 1,072 clips", "1,072"),
            ("so 2e3", "2e3"),
        ] {
            assert_eq!(last(text).as_deref(), Some(answer), "{text}");
        }
    }
}
