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

/// A program that fails scores 0, whatever it prints: the agent's own code may print in its process.
/// Of one that ends with exit code 0 the last line is the score if it is a number from 0 to 1, else 1. Lines of its
/// errors are none: nobody knows their place among those of its output.
fn of(ended: &Ended) -> Score {
    let last = ended.printed.trim_end().lines().last().unwrap_or_default().trim();
    let number = last.parse::<f64>().ok().filter(|score| (0.0..=1.0).contains(score));
    let value = if ended.code == Some(0) { number.unwrap_or(1.0) } else { 0.0 };
    Score { value, reason: format!("{ended}, last line {last:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(code: Option<i32>, output: &str) -> f64 {
        let (printed, errors) = (output.to_owned(), "\nFAILED (failures=1)\n");
        of(&Ended { code, output: format!("{printed}{errors}"), printed }).value
    }

    #[test]
    fn the_last_line_of_a_program_that_succeeds_is_the_score() {
        assert_eq!(score(Some(0), "noise\n0.25\n\n"), 0.25);
        assert_eq!(score(Some(0), "all fine"), 1.0);
        assert_eq!(score(Some(0), "0"), 0.0);
        for no_score in ["1.5", "-1", "NaN", "inf"] {
            assert_eq!(score(Some(0), no_score), 1.0, "{no_score}");
        }
    }

    #[test]
    fn a_failed_reward_program_scores_zero_whatever_it_prints() {
        for code in [Some(1), Some(2), Some(255), None] {
            for printed in ["", "1 failed", "1 failed\n1.0", "noise\n0.25\n\n", "1"] {
                assert_eq!(score(code, printed), 0.0, "{code:?} {printed:?}");
            }
        }
    }
}
