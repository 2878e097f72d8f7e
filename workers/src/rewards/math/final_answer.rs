//! Which part of a text is the answer.

/// Words that come right before an answer, in lower case.
const BEFORE: [&str; 4] = ["####", "answer is", "answer:", "answer ="];

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

/// The last answer: in a box, or else after words that announce one, or else the last formula, or
/// else the last number.
pub(super) fn last(text: &str) -> Option<String> {
    if let Some(inner) = boxed(text) {
        return Some(inner.to_owned());
    }
    if text.contains("\\boxed{") {
        // It was cut off in the middle of the answer.
        return None;
    }
    if let Some(line) = announced(text) {
        return Some(formula(line).or_else(|| number(line)).unwrap_or_else(|| line.to_owned()));
    }
    formula(text).or_else(|| number(text))
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

/// The last number, with its sign, percent and fraction.
fn number(text: &str) -> Option<String> {
    let inside = |c: char| c.is_ascii_digit() || matches!(c, ',' | '.' | '/');
    let chars: Vec<char> = text.chars().collect();
    let end = chars.iter().rposition(char::is_ascii_digit)? + 1;
    let mut start = end;
    while start > 0 && inside(chars[start - 1]) {
        start -= 1;
    }
    while start < end && !chars[start].is_ascii_digit() && chars[start] != '.' {
        start += 1;
    }
    let signed = start > 0 && matches!(chars[start - 1], '-' | '−');
    let alone = start < 2 || !chars[start - 2].is_alphanumeric();
    let sign = if signed && alone { "-" } else { "" };
    let percent = if chars.get(end) == Some(&'%') { "%" } else { "" };
    Some(format!("{sign}{}{percent}", chars[start..end].iter().collect::<String>()))
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
}
