//! Compute with two whole numbers, in words. The answer is the last number in the reply. Reward 1
//! when it is right.

use millrace_schemas::env_step::{Operation, Split};

use super::spoken::{TextEnvironment, TextStep};
use super::{EnvError, level, state};

const KIND: u8 = 4;
const NAME: &str = "arithmetic";

/// The environment.
#[derive(Debug, Clone, Copy)]
pub struct Arithmetic<'a> {
    /// Operations of the exercises.
    pub operations: &'a [Operation],
    /// Numbers are 0 to this.
    pub largest: u32,
    /// Tries at one exercise.
    pub max_turns: u32,
}

/// An exercise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Exercise {
    operation: Operation,
    a: u32,
    b: u32,
}

impl Exercise {
    fn answer(self) -> i64 {
        let (a, b) = (i64::from(self.a), i64::from(self.b));
        match self.operation {
            Operation::Add => a + b,
            Operation::Subtract => a - b,
            // Numbers are u32, so that their product fits.
            Operation::Multiply => a.saturating_mul(b),
        }
    }

    fn text(self) -> String {
        let sign = match self.operation {
            Operation::Add => '+',
            Operation::Subtract => '-',
            Operation::Multiply => '*',
        };
        format!("What is {} {sign} {}? Answer with the number only.", self.a, self.b)
    }

    /// The identity that decides the split: the operation and both numbers, the smaller first, so
    /// that 17 + 25 is not held out while 25 + 17 is trained on.
    fn identity(self) -> Vec<u8> {
        let Self { operation, a, b } = self;
        Self { operation, a: a.min(b), b: a.max(b) }.bytes().to_vec()
    }

    /// Operation and numbers.
    fn bytes(self) -> [u8; 9] {
        let operation = match self.operation {
            Operation::Add => 0,
            Operation::Subtract => 1,
            Operation::Multiply => 2,
        };
        let [a0, a1, a2, a3] = self.a.to_le_bytes();
        let [b0, b1, b2, b3] = self.b.to_le_bytes();
        [operation, a0, a1, a2, a3, b0, b1, b2, b3]
    }

    fn of_bytes([operation, a0, a1, a2, a3, b0, b1, b2, b3]: [u8; 9]) -> Option<Self> {
        let operation = match operation {
            0 => Operation::Add,
            1 => Operation::Subtract,
            2 => Operation::Multiply,
            _ => return None,
        };
        Some(Self {
            operation,
            a: u32::from_le_bytes([a0, a1, a2, a3]),
            b: u32::from_le_bytes([b0, b1, b2, b3]),
        })
    }
}

impl Arithmetic<'_> {
    fn seal(question: Exercise, turn: u16) -> Vec<u8> {
        state::seal(KIND, &[&question.bytes()[..], &turn.to_le_bytes()].concat())
    }

    fn open(&self, bytes: &[u8]) -> Result<(Exercise, u16), EnvError> {
        let fail = |reason: String| EnvError::State { environment: NAME, reason };
        let [question @ .., low, high] = state::open::<11>(NAME, KIND, bytes)?;
        let turn = u16::from_le_bytes([low, high]);
        let question = Exercise::of_bytes(question).ok_or_else(|| fail("no such operation".to_owned()))?;
        let Exercise { operation, a, b } = question;
        if a.max(b) > self.largest
            || !self.operations.contains(&operation)
            || u32::from(turn) >= self.max_turns
        {
            let (largest, turns) = (self.largest, self.max_turns);
            return Err(fail(format!("{operation:?} {a} {b} up to {largest}, turn={turn} of {turns}")));
        }
        Ok((question, turn))
    }
}

impl TextEnvironment for Arithmetic<'_> {
    fn reset(&self, split: Split, seed: u64) -> Result<TextStep, EnvError> {
        let candidate = |stream: &mut millrace_policy::random::Stream| {
            let operation = *self.operations.get(stream.below(self.operations.len() as u64) as usize)?;
            let mut number = || stream.below(u64::from(self.largest) + 1) as u32;
            Some(Exercise { operation, a: number(), b: number() })
        };
        let question = level::draw(NAME, split, seed, candidate, |question| question.identity())?;
        Ok(TextStep {
            state: Self::seal(question, 0),
            text: question.text(),
            reward: 0.0,
            done: false,
            success: false,
            valid: true,
        })
    }

    fn step(&self, state: &[u8], reply: &str) -> Result<TextStep, EnvError> {
        let (question, turn) = self.open(state)?;
        let answer = last_number(reply);
        let success = answer == Some(question.answer());
        let turn = turn + 1;
        let done = success || u32::from(turn) >= self.max_turns;
        let (state, text) = if done {
            (Vec::new(), String::new())
        } else {
            (Self::seal(question, turn), format!("That is not right. {}", question.text()))
        };
        let reward = f64::from(u8::from(success));
        Ok(TextStep { state, text, reward, done, success, valid: answer.is_some() })
    }
}

/// The last number in a text, if it is whole: 18.00 is 18, and 12.5 is none. Commas between digits are read
/// over, a minus right before them is a sign unless a digit comes before it. One that does not fit an
/// `i64` is none.
pub(super) fn last_number(text: &str) -> Option<i64> {
    let text: Vec<char> = text.chars().collect();
    let end = text.iter().rposition(char::is_ascii_digit)? + 1;
    let digit = |at: usize| text.get(at).is_some_and(char::is_ascii_digit);
    let point = |at: usize| text[at] == '.' && begins_fraction(&text[..at]);
    let inside = |at: usize| digit(at) || point(at) || (text[at] == ',' && at > 0 && digit(at - 1));
    let start = (0..end).rev().take_while(|&at| inside(at)).last()?;
    let written: String = text[start..end].iter().filter(|c| **c != ',').collect();
    let (digits, fraction) = written.split_once('.').unwrap_or((&written, ""));
    if fraction.contains(|c| c != '0') {
        return None;
    }
    let number: i64 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    let before = |back: usize| start.checked_sub(back).map(|at| text[at]);
    let negative = matches!(before(1), Some('-' | '−')) && !before(2).is_some_and(|c| c.is_ascii_digit());
    Some(if negative { -number } else { number })
}

/// Whether a point after this text is a decimal one, if digits follow it: after a digit, and in `.5`, but not at the
/// end of a word or of "…".
fn begins_fraction(before: &[char]) -> bool {
    before.last().is_none_or(|c| !c.is_alphabetic() && *c != '.')
}

#[cfg(test)]
mod tests;
