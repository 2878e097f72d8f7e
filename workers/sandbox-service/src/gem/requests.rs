//! What is asked of environments, and what they answer. All of it is bare JSON.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::service::{ServiceError, invalid};

/// Characters of an environment's id.
const ID_CHARS: usize = 256;

/// An environment to make.
#[derive(Debug, Deserialize)]
pub(super) struct Make {
    pub(super) env_id: String,
}

/// One to begin again.
#[derive(Debug, Deserialize)]
pub(super) struct Reset {
    pub(super) sandbox_id: String,
    /// Draws the start. `None`: any start.
    pub(super) seed: Option<u64>,
}

/// A step in one.
#[derive(Debug, Deserialize)]
pub(super) struct Step {
    pub(super) sandbox_id: String,
    pub(super) action: String,
}

/// One by its name.
#[derive(Debug, Deserialize)]
pub(super) struct ById {
    pub(super) sandbox_id: String,
}

/// What a reset brings.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResetTold {
    pub(super) observation: String,
    pub(super) info: Map<String, Value>,
}

/// What a step brings.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StepTold {
    pub(super) observation: String,
    /// Finite: JSON has no other.
    pub(super) reward: f64,
    pub(super) terminated: bool,
    pub(super) truncated: bool,
    pub(super) info: Map<String, Value>,
}

/// A name, or a name and an id, as packages have them: `game:GuessTheNumber-v0-easy`, `ALE/Pong-v5`.
pub(super) fn check_env_id(id: &str) -> Result<(), ServiceError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/@+=".contains(c);
    let parts_are_names = id.split('/').all(|part| !matches!(part, "" | "." | ".."));
    if id.len() <= ID_CHARS && id.chars().all(is_plain) && parts_are_names {
        return Ok(());
    }
    let remedy = "1 to 256 letters, digits and `-_.:/@+=`, as NAME, NAME/ID or ID, without `..`";
    Err(invalid("env_id", id, remedy))
}

/// A seed for those who name none.
pub(super) fn any_seed() -> Result<u64, ServiceError> {
    let number = getrandom::u32().map_err(|error| invalid("seed", "none", error.to_string()))?;
    Ok(u64::from(number >> 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_name_and_no_path() {
        for id in ["riddles", "gem/game:GuessTheNumber-v0-easy", "gymnasium/ALE/Pong-v5"] {
            assert_eq!(check_env_id(id), Ok(()), "{id}");
        }
        for id in ["", "../riddles", "a/../b", "/etc/passwd", "a//b", "a b", "a\n", "ä", &"x".repeat(257)] {
            assert!(check_env_id(id).is_err(), "{id}");
        }
        assert!(serde_json::from_str::<Reset>(r#"{"sandbox_id": "a", "seed": -1}"#).is_err());
        assert!(any_seed().unwrap() < 1 << 31);
    }
}
