//! The reward of an agent: a program in the folder that the agent left, with files that were never
//! there before.

use std::time::Duration;

use tokio::time::timeout;

use crate::process::{Ended, Place, PlaceError, Program};

/// A score and why.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Score {
    /// From 0 to 1.
    pub(crate) value: f64,
    /// For people.
    pub(crate) reason: String,
}

/// Runs the program. What it does is a result: one that does not end in time gives 0, for it is the
/// agent's work that it runs; so does one that was in the folder and is gone.
pub(crate) async fn run(place: &dyn Place, program: Program, limit: Duration) -> Result<Score, PlaceError> {
    let is_inner = program.argv.first().is_some_and(|name| name.contains('/') && !name.starts_with('/'));
    let mut running = match place.start(program).await {
        Err(error @ PlaceError::Start { .. }) if is_inner => {
            return Ok(Score { value: 0.0, reason: error.to_string() });
        }
        started => started?,
    };
    let ended = timeout(limit, running.wait()).await;
    running.kill().await;
    let Ok(ended) = ended else {
        return Ok(Score {
            value: 0.0,
            reason: format!("the reward's program did not end within {limit:?}"),
        });
    };
    Ok(of(&ended?))
}

/// The last line is the score if it is a number from 0 to 1; else the exit code decides.
fn of(ended: &Ended) -> Score {
    let last = ended.output.trim_end().lines().last().unwrap_or_default().trim();
    let number = last.parse::<f64>().ok().filter(|score| (0.0..=1.0).contains(score));
    let value = number.unwrap_or(f64::from(u8::from(ended.code == Some(0))));
    Score { value, reason: format!("{ended}, last line {last:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_or_the_exit_code_is_the_score() {
        let score = |code: Option<i32>, output: &str| of(&Ended { code, output: output.to_owned() }).value;
        assert_eq!(score(Some(1), "noise\n0.25\n\n"), 0.25);
        assert_eq!(score(Some(0), "all fine"), 1.0);
        assert_eq!(score(Some(0), "0"), 0.0);
        assert_eq!(score(Some(2), "1 failed"), 0.0);
        assert_eq!(score(None, ""), 0.0);
        for no_score in ["1.5", "-1", "NaN", "inf"] {
            assert_eq!(score(Some(3), no_score), 0.0, "{no_score}");
        }
    }
}
