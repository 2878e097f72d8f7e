//! Whether our engine and transformers mean the same: what either makes of the same tokens.

use millrace_schemas::generate::GenerateDone;
use serde::{Deserialize, Serialize};

use super::super::rival::Rival;
use super::ours::{Ours, Work};

/// Turns of each kind.
const TURNS: usize = 8;
/// The number format in which transformers computes the reference.
const ORACLE: &str = "float32";
const WORK: Work = Work { prompt: 64, tokens: 64, seed: 9_000 };

/// A request to the rival: its log-prob of each token of each row from `from` on, and whether it
/// would have chosen the token greedily.
#[derive(Debug, Serialize)]
pub(super) struct Question<'a> {
    score: &'a [Vec<u32>],
    from: usize,
    dtype: &'static str,
}

/// Its answer, for each row.
#[derive(Debug, Deserialize)]
struct Scores {
    logprobs: Vec<Vec<f64>>,
    greedy: Vec<Vec<bool>>,
}

/// How far two are from each other, in nats a token.
#[derive(Debug, Clone, Copy, Serialize)]
struct Off {
    mean: f64,
    largest: f64,
}

/// Our engine in these numbers, and transformers in f32, on the same tokens.
#[derive(Debug, Serialize)]
pub(super) struct Parity {
    dtype: &'static str,
    tokens: usize,
    /// Our engine from transformers in f32.
    ours: Off,
    /// Transformers in these numbers from itself in f32.
    theirs: Off,
    /// Tokens drawn greedily that transformers in f32 would have drawn, too.
    greedy_share: f64,
}

impl Parity {
    pub(super) fn measure(dtype: &'static str, ours: &mut Ours, rival: &mut Rival) -> anyhow::Result<Self> {
        let drawn = ours.turns(dtype, WORK, TURNS, 1.0)?;
        let logprobs: Vec<f64> = drawn
            .iter()
            .flat_map(|(_, turn)| turn.logprobs.iter().map(|logprob| f64::from(*logprob)))
            .collect();
        let exact = ask(rival, &drawn, ORACLE)?.logprobs.concat();
        let theirs = ask(rival, &drawn, dtype)?.logprobs.concat();
        let greedy = ask(rival, &ours.turns(dtype, WORK, TURNS, 0.0)?, ORACLE)?.greedy.concat();
        anyhow::ensure!(
            exact.len() == logprobs.len() && theirs.len() == exact.len(),
            "the rival left out tokens"
        );
        let same = greedy.iter().filter(|same| **same).count();
        Ok(Self {
            dtype,
            tokens: logprobs.len(),
            ours: off(&logprobs, &exact),
            theirs: off(&theirs, &exact),
            greedy_share: same as f64 / greedy.len().max(1) as f64,
        })
    }

    /// For people.
    pub(super) fn line(&self) -> String {
        let Self { dtype, tokens, ours, theirs, greedy_share, .. } = self;
        let own = format!("; transformers' own in {dtype}: {:.1e} and {:.1e}", theirs.mean, theirs.largest);
        format!(
            "\nIn {dtype}, log-probabilities of {tokens} sampled tokens are {:.1e} off transformers' in {ORACLE} in the mean and \
             {:.1e} at most{}; of tokens drawn greedily {:.1} % are those of transformers in {ORACLE}.\n",
            ours.mean,
            ours.largest,
            if *dtype == ORACLE { String::new() } else { own },
            100.0 * greedy_share
        )
    }
}

fn ask(rival: &mut Rival, turns: &[(Vec<u32>, GenerateDone)], dtype: &'static str) -> anyhow::Result<Scores> {
    let rows: Vec<Vec<u32>> =
        turns.iter().map(|(context, turn)| [context.as_slice(), turn.tokens.as_slice()].concat()).collect();
    rival.ask(&Question { score: &rows, from: WORK.prompt, dtype })
}

fn off(a: &[f64], b: &[f64]) -> Off {
    let apart = || a.iter().zip(b).map(|(a, b)| (a - b).abs());
    Off { mean: apart().sum::<f64>() / a.len().max(1) as f64, largest: apart().fold(0.0, f64::max) }
}
