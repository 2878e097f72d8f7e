//! All rows of a file: where each starts, and which are held out. Only offsets are kept; a row is
//! parsed when it is played.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::{DatasetContent, DatasetSpec, Row};
use crate::blob::BlobRef;
use crate::env_step::Split;
use crate::limits::{MAX_CLAIM_BYTES, MAX_ROW_BYTES};

/// The rows of a file, all of them valid.
#[derive(Debug, Clone)]
pub struct Rows {
    content: Bytes,
    /// Offset of each line, and of the end of the last. `[lines + 1]`
    starts: Vec<usize>,
    /// Lines that are trained on, from 0, in the file's order.
    train: Vec<u32>,
    /// Lines that are held out, from 0, in the file's order.
    held_out: Vec<u32>,
}

/// Why a file is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DatasetError {
    /// It is empty.
    #[error("it has no rows; write a JSON object on each line")]
    Empty,
    /// It is too long.
    #[error("it has bytes={0}, more than {MAX_CLAIM_BYTES}; split it")]
    TooLong(u64),
    /// A line is not a valid row.
    #[error("line={line}: {reason}")]
    Line {
        /// The line, from 1.
        line: usize,
        /// The mistake and the remedy.
        reason: String,
    },
    /// All prompts are the same, so that none can be held out.
    #[error(
        "all of its rows={0} have one prompt, so that none can be held out; choose environment.held_out = 0"
    )]
    OnePrompt(usize),
    /// There is no such row.
    #[error("row={row} was asked of {split:?} rows={rows}")]
    NoRow {
        /// The row, from 0.
        row: u64,
        /// The split.
        split: Split,
        /// Rows of the split.
        rows: usize,
    },
}

impl Rows {
    /// Reads a file whole and checks every row.
    ///
    /// # Errors
    /// The first line that is wrong, with its field and a remedy.
    pub fn read(content: Bytes, spec: &DatasetSpec) -> Result<Self, DatasetError> {
        if content.len() as u64 > MAX_CLAIM_BYTES {
            return Err(DatasetError::TooLong(content.len() as u64));
        }
        let mut starts = vec![0];
        let mut keys = Vec::new();
        for line in content.split_inclusive(|byte| *byte == b'\n') {
            let row = read_line(line, spec);
            let row = row.map_err(|reason| DatasetError::Line { line: starts.len(), reason })?;
            keys.push(row.key());
            starts.push(starts[starts.len() - 1] + line.len());
        }
        if keys.is_empty() {
            return Err(DatasetError::Empty);
        }
        let most = highest_held_out(&keys, spec.held_out)?;
        let lines = || keys.iter().zip(0u32..);
        let held_out = |key: u64| most.is_some_and(|most| key <= most);
        let train = lines().filter(|(key, _)| !held_out(**key)).map(|(_, line)| line).collect();
        let held_out = lines().filter(|(key, _)| held_out(**key)).map(|(_, line)| line).collect();
        Ok(Self { content, starts, train, held_out })
    }

    /// Rows of a split.
    #[must_use]
    pub fn len(&self, split: Split) -> usize {
        self.lines(split).len()
    }

    /// The content of the file, as a run file has it.
    #[must_use]
    pub fn content(&self) -> DatasetContent {
        let count = |split| self.len(split) as u64;
        DatasetContent {
            blob: BlobRef::of(&self.content),
            train: count(Split::Train),
            held_out: count(Split::HeldOut),
        }
    }

    /// The file.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.content
    }

    /// The row of a split, counted from 0 in the file's order, and its line, counted from 1.
    ///
    /// # Errors
    /// There is no such row, or `spec` differs from the one by which the file was read.
    pub fn row(&self, split: Split, row: u64, spec: &DatasetSpec) -> Result<(usize, Row), DatasetError> {
        let lines = self.lines(split);
        let at = usize::try_from(row).ok().and_then(|row| lines.get(row));
        let at = *at.ok_or(DatasetError::NoRow { row, split, rows: lines.len() })? as usize;
        let line = &self.content[self.starts[at]..self.starts[at + 1]];
        let row = read_line(line, spec).map_err(|reason| DatasetError::Line { line: at + 1, reason })?;
        Ok((at + 1, row))
    }

    fn lines(&self, split: Split) -> &[u32] {
        match split {
            Split::Train => &self.train,
            Split::HeldOut => &self.held_out,
        }
    }
}

fn read_line(line: &[u8], spec: &DatasetSpec) -> Result<Row, String> {
    if line.len() > MAX_ROW_BYTES {
        return Err(format!("it has bytes={}, more than {MAX_ROW_BYTES}; shorten the row", line.len()));
    }
    if let Err(e) = std::str::from_utf8(line) {
        let at = e.valid_up_to() + 1;
        return Err(format!("its byte={at} is no UTF-8; write the file in UTF-8"));
    }
    if line.trim_ascii().is_empty() {
        return Err("it is empty; take it out".to_owned());
    }
    Row::read(line, spec)
}

/// The highest key of a prompt that is held out; `None` if none is. Prompts are counted, not rows,
/// so that the share is exact to one prompt and rows of the same prompt stay together.
fn highest_held_out(keys: &[u64], share: f64) -> Result<Option<u64>, DatasetError> {
    if share <= 0.0 {
        return Ok(None);
    }
    let prompts: BTreeSet<u64> = keys.iter().copied().collect();
    let most = prompts.len() - 1;
    if most == 0 {
        return Err(DatasetError::OnePrompt(keys.len()));
    }
    let count = (share * prompts.len() as f64).round() as usize;
    Ok(prompts.into_iter().nth(count.clamp(1, most) - 1))
}
