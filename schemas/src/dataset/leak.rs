//! Prompts that one domain of a run trains on and another holds out: evaluating on them measures what
//! was learnt by heart. Each dataset holds out by itself, so two of them agree only where file and
//! share are the same.

use std::collections::{BTreeMap, BTreeSet};
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
    pub fn find(
        trained: (&Rows, &DatasetSpec),
        held_out: (&Rows, &DatasetSpec),
    ) -> Result<Option<Self>, DatasetError> {
        let away = prompts(held_out, Split::HeldOut)?;
        if away.is_empty() {
            return Ok(None);
        }
        let mut leaked = BTreeSet::new();
        let mut first = None;
        let (rows, spec) = trained;
        for at in 0..rows.len(Split::Train) as u64 {
            let (trained_line, row) = rows.row(Split::Train, at, spec)?;
            let Some(&held_out_line) = away.get(&row.key()) else { continue };
            leaked.insert(row.key());
            first.get_or_insert_with(|| {
                let said = row.messages.last().map_or("", |message| &message.content);
                (trained_line, held_out_line, cut(said, SHOWN).to_owned())
            });
        }
        Ok(first.map(|(trained_line, held_out_line, prompt)| Self {
            prompts: leaked.len(),
            trained_line,
            held_out_line,
            prompt,
        }))
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

/// The key of each prompt of a split, and the first line that has it.
fn prompts((rows, spec): (&Rows, &DatasetSpec), split: Split) -> Result<BTreeMap<u64, usize>, DatasetError> {
    let mut prompts = BTreeMap::new();
    for at in 0..rows.len(split) as u64 {
        let (line, row) = rows.row(split, at, spec)?;
        prompts.entry(row.key()).or_insert(line);
    }
    Ok(prompts)
}
