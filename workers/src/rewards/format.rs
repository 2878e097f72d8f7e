//! `format`: the share of turns that have the required form, minus 1. Without settings, a turn has
//! it if it was an action of the environment.

use millrace_schemas::env_step::Speaker;
use millrace_schemas::reward::format::FormatSettings;
use millrace_schemas::reward::{RewardDone, RewardTask};

use super::{RewardError, plain, settings};

/// The score.
///
/// # Errors
/// The settings cannot work, or they ask for text and the rollout has none.
pub(super) fn score(task: &RewardTask) -> Result<RewardDone, RewardError> {
    let settings: FormatSettings = settings(task)?;
    if settings.tags.is_empty() {
        let valid = task.turns.iter().filter(|turn| turn.valid).count();
        return Ok(plain(valid as f64 / task.turns.len() as f64 - 1.0));
    }
    let utterance = task.conversation.iter().filter(|utterance| utterance.speaker == Speaker::Policy);
    let faults: Vec<Option<String>> = utterance.map(|utterance| fault(&utterance.text, &settings)).collect();
    if faults.is_empty() {
        return Err(RewardError::NoWords);
    }
    let sound = faults.iter().filter(|fault| fault.is_none()).count();
    let reason = faults.iter().flatten().next().cloned().unwrap_or_default();
    Ok(RewardDone { score: sound as f64 / faults.len() as f64 - 1.0, reason })
}

/// How the text departs from the form; `None` if it has it.
fn fault(text: &str, settings: &FormatSettings) -> Option<String> {
    let mut rest = text.trim();
    let mut opened = settings.opened;
    for tag in &settings.tags {
        let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
        let opens = usize::from(!opened);
        if text.matches(&open).count() != opens || text.matches(&close).count() != 1 {
            return Some(format!("it does not have {open} and {close} once"));
        }
        if !opened {
            let Some((before, after)) = rest.split_once(&open) else {
                return Some(format!("{open} does not come after what is before it"));
            };
            if !settings.loose && !before.trim().is_empty() {
                return Some(format!("something stands before {open}"));
            }
            rest = after;
        }
        opened = false;
        let Some((inner, after)) = rest.split_once(&close) else {
            return Some(format!("{close} does not come after what is before it"));
        };
        if inner.trim().is_empty() {
            return Some(format!("nothing stands in {open}"));
        }
        rest = after;
    }
    (!settings.loose && !rest.trim().is_empty()).then(|| "something stands after the last tag".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound(text: &str, opened: bool, loose: bool) -> bool {
        let tags = ["think", "answer"].map(str::to_owned).to_vec();
        fault(text, &FormatSettings { tags, opened, loose }).is_none()
    }

    #[test]
    fn an_answer_has_each_tag_once_and_in_order() {
        let good = "<think>\nso\n</think>\n<answer>3</answer>\n";
        assert!(sound(good, false, false) && sound(good, false, true) && !sound(good, true, false));
        assert!(sound("so</think> <answer>3</answer>", true, false));
        assert!(!sound("so</think> <answer>3</answer>", false, false));
        let chatty = format!("Well: {good} So it is 3.");
        assert!(!sound(&chatty, false, false) && sound(&chatty, false, true));
        for bad in [
            "",
            "3",
            "<think>so</think>",
            "<think>so<answer>3</answer></think>",
            "<answer>3</answer><think>so</think>",
            "<think></think><answer>3</answer>",
            "<think>so</think><answer> </answer>",
            "<think>so</think><answer>3</answer><answer>4</answer>",
            "<think>so</think></think><answer>3</answer>",
            "<think>so</think><answer>3",
            "</think>so<think><answer>3</answer>",
            "<Think>so</Think><answer>3</answer>",
        ] {
            assert!(!sound(bad, false, false) && !sound(bad, false, true), "{bad}");
        }
    }
}
