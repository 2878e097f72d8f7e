//! Settings of `format`: the form that each answer must have. Without settings it counts turns that
//! were actions.

use serde::{Deserialize, Serialize};

use super::settings::{RuleSettings, WrongSetting};

/// Settings of the rule `format`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FormatSettings {
    /// Tags of which an answer consists, in this order, each once and not empty, with only white
    /// space outside: `["think", "answer"]`. Default [].
    pub tags: Vec<String>,
    /// The first tag is open already: the prompt ends with it. Default false.
    pub opened: bool,
    /// Allow other text before, between and after the tags. Default false.
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
            for (field, is_set) in [("opened", self.opened), ("loose", self.loose)] {
                if is_set {
                    wrong.push(WrongSetting::new(
                        field,
                        is_set.to_string(),
                        "it is about tags, and none are given; name them",
                    ));
                }
            }
        }
        wrong
    }
}
