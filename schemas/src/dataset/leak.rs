//! Prompts that one domain of a run trains on and another holds out: evaluating on them measures what
//! was learnt by heart. Each dataset holds out by itself, so two of them agree only where file and
//! share are the same.

use std::collections::BTreeMap;
use std::fmt;

use super::{DatasetError, DatasetSpec, Rows};
use crate::env_step::Split;
use crate::text::cut;

/// Bytes of a prompt that are shown.
const SHOWN: usize = 80;

/// Prompts of a dataset that another one of the run holds out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leak {
    /// How many; 1 or more.
    pub prompts: usize,
    /// A line of the first of them where it is trained on, from 1.
    pub trained_line: usize,
    /// A line of the same where it is held out, from 1.
    pub held_out_line: usize,
    /// What the user says in it, in part.
    pub prompt: String,
}

impl Leak {
    /// The prompts that `trained` trains on and `held_out` holds out; `None` if there are none.
    ///
    /// # Errors
    /// A specification differs from the one by which its rows were read.
    pub fn find(trained: &Prompts<'_>, held_out: &Prompts<'_>) -> Result<Option<Self>, DatasetError> {
        let leaked = trained.trained.iter().filter_map(|(key, at)| Some((*at, *held_out.held_out.get(key)?)));
        let leaked: Vec<(u64, usize)> = leaked.collect();
        let Some(&(at, held_out_line)) = leaked.iter().min() else { return Ok(None) };
        let (trained_line, row) = trained.rows.row(Split::Train, at, trained.spec)?;
        let said = row.messages.last().map_or("", |message| &message.content);
        let prompt = cut(said, SHOWN).to_owned();
        Ok(Some(Self { prompts: leaked.len(), trained_line, held_out_line, prompt }))
    }
}

/// The prompts of a dataset by their keys, read once for all that it is compared with.
#[derive(Debug)]
pub struct Prompts<'a> {
    rows: &'a Rows,
    spec: &'a DatasetSpec,
    /// The place of the first row that has it.
    trained: BTreeMap<u64, u64>,
    /// The first line that has it.
    held_out: BTreeMap<u64, usize>,
}

impl<'a> Prompts<'a> {
    /// Those of rows that were read by `spec`.
    ///
    /// # Errors
    /// `spec` differs from the one by which the rows were read.
    pub fn of(rows: &'a Rows, spec: &'a DatasetSpec) -> Result<Self, DatasetError> {
        let (mut trained, mut held_out) = (BTreeMap::new(), BTreeMap::new());
        for at in 0..rows.len(Split::Train) as u64 {
            let (_, row) = rows.row(Split::Train, at, spec)?;
            trained.entry(row.key()).or_insert(at);
        }
        for at in 0..rows.len(Split::HeldOut) as u64 {
            let (line, row) = rows.row(Split::HeldOut, at, spec)?;
            held_out.entry(row.key()).or_insert(line);
        }
        Ok(Self { rows, spec, trained, held_out })
    }
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prompts, trained_line, held_out_line, prompt } = self;
        write!(
            f,
            "prompts={prompts} are trained on and held out there, as {prompt:?}, line={trained_line} and there \
             line={held_out_line}"
        )
    }
}
