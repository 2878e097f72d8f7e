//! The policy's answer, and the parts of it that rules read.

use millrace_schemas::env_step::Speaker;
use millrace_schemas::reward::RewardTask;
use serde_json::Value;

use super::RewardError;

/// The policy's last turn; empty where it wrote nothing in it.
///
/// # Errors
/// The rollout has no text at all.
pub(super) fn last(task: &RewardTask) -> Result<&str, RewardError> {
    let utterance = task.conversation.iter().rev().find(|utterance| utterance.speaker == Speaker::Policy);
    utterance.map(|utterance| utterance.text.as_str()).ok_or(RewardError::NoWords)
}

/// The right answer, from the settings or else from the prompt's row.
///
/// # Errors
/// The row has none that is text or a number.
pub(super) fn right(task: &RewardTask, fixed: Option<&str>, field: &str) -> Result<String, RewardError> {
    if let Some(fixed) = fixed {
        return Ok(fixed.to_owned());
    }
    let fail = |reason: &str| RewardError::Row { field: field.to_owned(), reason: reason.to_owned() };
    match task.row.get(field) {
        Some(Value::String(text)) if !text.trim().is_empty() => Ok(text.clone()),
        Some(Value::Number(number)) => Ok(number.to_string()),
        Some(_) => Err(fail("it is neither text nor a number")),
        None => {
            Err(fail("the row has none; name the one that holds the right answer by settings.answer_field"))
        }
    }
}

/// The expected answer: `fixed` for all rows, or `read` from the prompt's row's `field`.
///
/// # Errors
/// The row has no such field, or has it in another form.
pub(super) fn demanded<T: Clone>(
    task: &RewardTask,
    fixed: &[T],
    field: Option<&String>,
    read: impl Fn(&Value) -> Result<Vec<T>, String>,
) -> Result<Vec<T>, RewardError> {
    let Some(field) = field else { return Ok(fixed.to_vec()) };
    let fail = |reason: String| RewardError::Row { field: field.clone(), reason };
    let value = task.row.get(field).ok_or_else(|| fail("the row has none".to_owned()))?;
    read(value).map_err(fail)
}

/// The last whole fenced block of a text (CommonMark 0.31, "Fenced code blocks", with backticks)
/// whose first word names one of `languages`, or that names none.
pub(super) fn last_block(text: &str, languages: &[&str]) -> Option<String> {
    let mut found = None;
    let mut open: Option<(usize, bool, Vec<&str>)> = None;
    for line in text.lines() {
        let inner = line.trim_start();
        let ticks = inner.len() - inner.trim_start_matches('`').len();
        let word = inner[ticks..].trim();
        let is_fence = ticks >= 3 && line.len() - inner.len() <= 3 && !word.contains('`');
        match &mut open {
            None if is_fence => {
                let language = word.split_whitespace().next().unwrap_or_default().to_lowercase();
                let matches_language = language.is_empty() || languages.contains(&language.as_str());
                open = Some((ticks, matches_language, Vec::new()));
            }
            None => {}
            Some((opened, matches_language, lines)) if is_fence && ticks >= *opened && word.is_empty() => {
                if *matches_language {
                    found = Some(lines.join("\n") + "\n");
                }
                open = None;
            }
            Some((_, _, lines)) => lines.push(line),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_block_is_found() {
        let python = |text| last_block(text, &["python"]);
        assert_eq!(python("a\n```python\nx\n\n  y\n```\nb").as_deref(), Some("x\n\n  y\n"));
        assert_eq!(python("```\n1\n```\n```Python title\n2\n```\n").as_deref(), Some("2\n"));
        assert_eq!(python("```python\n1\n```\nso\n```text\n2\n```").as_deref(), Some("1\n"));
        assert_eq!(
            python("```python\n1\n```\n```python\n2").as_deref(),
            Some("1\n"),
            "one that is cut off is none"
        );
        assert_eq!(python("````python\n```\n````").as_deref(), Some("```\n"));
        assert_eq!(python("```python\nprint('```')\n```").as_deref(), Some("print('```')\n"));
        assert_eq!(python("no block, `x` or ```x```"), None);
        assert_eq!(python("    ```python\n    x\n    ```"), None);
    }
}
