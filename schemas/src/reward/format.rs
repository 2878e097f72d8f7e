//! What `format` is told: the form that each answer must have. Told nothing, it counts turns that were actions.

use serde::{Deserialize, Serialize};

use super::settings::{RuleSettings, WrongSetting};

/// Settings of the rule `format`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FormatSettings {
    /// Tags of which an answer consists, in this order, each once, with something in it, and nothing but white space outside:
    /// `["think", "answer"]`. Default [].
    pub tags: Vec<String>,
    /// The first tag is open already: the prompt ends with it. Default false.
    pub opened: bool,
    /// White space apart, other words may stand before, between and after the tags. Default false.
    pub loose: bool,
}

impl RuleSettings for FormatSettings {
    fn wrong(&self) -> Vec<WrongSetting> {
        let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let faults = self.tags.iter().enumerate().filter_map(|(at, tag)| {
            let twice = self.tags[..at].contains(tag);
            let fits = !tag.is_empty() && tag.chars().all(letter) && !twice;
            let remedy = "write the name alone, \"think\" for <think>…</think>, and each once";
            (!fits).then(|| WrongSetting::new(&format!("tags[{at}]"), format!("{tag:?}"), remedy))
        });
        let mut wrong: Vec<_> = faults.collect();
        if self.tags.is_empty() {
            for (field, told) in [("opened", self.opened), ("loose", self.loose)] {
                if told {
                    wrong.push(WrongSetting::new(
                        field,
                        told.to_string(),
                        "it says something of tags, and none are named; name them",
                    ));
                }
            }
        }
        wrong
    }
}
