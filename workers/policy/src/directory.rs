//! A model directory in the layout of the Hugging Face hub: read, checked whole, and made version 0
//! of a run. Nothing here needs libtorch, so that a broken directory is refused before anything
//! starts.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use millrace_schemas::limits::MAX_COMPANION_BYTES;
use millrace_schemas::submit::{ModelSpec, Precision};
use serde_json::{Map, Value};

use crate::decoder::{CONTEXT_KEY, Config, Layout};
use crate::{CONFIG_FILE, MODEL_FILE};
use tensors::Tensors;

pub mod files;
mod tensors;
mod numbers;
mod tokens;

/// Which shard holds which tensor.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// Small files that a version takes over as they are.
pub const COMPANIONS: [&str; 8] = [
    crate::text_codec::TOKENIZER_FILE,
    crate::text_codec::TOKENIZER_CONFIG_FILE,
    crate::text_codec::TEMPLATE_FILE,
    crate::text_codec::GENERATION_FILE,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
];
/// Faults in a message at most, before the number of further ones.
const MAX_SHOWN: usize = 20;

/// One thing that is wrong with a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The file, by its name in the directory.
    pub file: String,
    /// What is wrong with it, and what would be right.
    pub what: String,
}

impl Fault {
    fn new(file: impl Into<String>, what: impl Into<String>) -> Self {
        Self { file: file.into(), what: what.into() }
    }
}

/// Why a directory is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Broken {
    /// The directory.
    pub path: PathBuf,
    /// Whether there is no such directory, as opposed to one with faults.
    pub absent: bool,
    /// Everything that is wrong with it; one or more.
    pub faults: Vec<Fault>,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "model directory {} is refused:", self.path.display())?;
        for Fault { file, what } in self.faults.iter().take(MAX_SHOWN) {
            write!(f, "\n  {file}: {what}")?;
        }
        match self.faults.len().saturating_sub(MAX_SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

/// A directory whose files fit one another. Its numbers are not checked yet.
#[derive(Debug)]
pub struct ModelDir {
    path: PathBuf,
    config: Config,
    /// `config.json`, as it is there.
    json: Map<String, Value>,
    tensors: Tensors,
    companions: BTreeMap<String, Bytes>,
}

impl ModelDir {
    /// Opens a directory for rollouts of `context` tokens, or as many as the model takes, and
    /// checks everything but the numbers.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn open(path: &Path, context: Option<u32>) -> Result<Self, Broken> {
        let broken = |absent, faults| Broken { path: path.to_owned(), absent, faults };
        if !path.is_dir() {
            let fault = Fault::new(".", "there is no such directory on this machine");
            return Err(broken(true, vec![fault]));
        }
        let mut faults = Vec::new();
        let config = read_config(path, context).map_err(|fault| faults.push(fault)).ok();
        let layout = config.as_ref().map(|(config, _)| Layout::of(config));
        let tied = config.as_ref().is_some_and(|(config, _)| config.tie_word_embeddings);
        let tensors = Tensors::open(path, layout.as_ref(), tied, &mut faults);
        let companions = read_companions(path, &mut faults);
        tokens::check(&companions, config.as_ref().map(|(config, json)| (config, json)), &mut faults);
        match (config, tensors) {
            (Some((config, json)), Some(tensors)) if faults.is_empty() => {
                Ok(Self { path: path.to_owned(), config, json, tensors, companions })
            }
            _ => Err(broken(false, faults)),
        }
    }

    /// The shape.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Numbers that the model has.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        Layout::of(&self.config).len.unsigned_abs()
    }

    /// Whether it has a tokenizer.
    #[must_use]
    pub fn speaks(&self) -> bool {
        self.companions.contains_key(crate::text_codec::TOKENIZER_FILE)
    }

    /// Reads every number.
    ///
    /// # Errors
    /// One is not finite, or a file cannot be read.
    pub fn check_numbers(&self) -> Result<(), Broken> {
        self.numbers(|_| {})
    }

    /// The files of version 0: the weights in `precision`, `config.json`, and the small files as
    /// they are.
    ///
    /// # Errors
    /// A number is not finite, or a file cannot be read.
    pub fn version(&self, precision: Precision) -> Result<BTreeMap<String, Bytes>, Broken> {
        let layout = Layout::of(&self.config);
        let mut weights = numbers::header(&layout, precision);
        weights.reserve_exact(self.parameters() as usize * precision.bytes());
        self.numbers(|chunk| chunk.append_to(&mut weights, precision))?;
        let mut files = self.companions.clone();
        files.insert(MODEL_FILE.to_owned(), weights.into());
        files.insert(CONFIG_FILE.to_owned(), self.version_config(precision));
        Ok(files)
    }

    fn numbers(&self, mut take: impl FnMut(numbers::Chunk<'_>)) -> Result<(), Broken> {
        let mut faults = Vec::new();
        for part in &Layout::of(&self.config).parts {
            if let Err(fault) = self.tensors.read(&part.name, &mut take) {
                faults.push(fault);
            }
        }
        let broken = || Broken { path: self.path.clone(), absent: false, faults: faults.clone() };
        if faults.is_empty() { Ok(()) } else { Err(broken()) }
    }

    /// `config.json` of the versions: the directory's, but for the precision and context.
    fn version_config(&self, precision: Precision) -> Bytes {
        let mut json = self.json.clone();
        for key in ["quantization_config", "torch_dtype", "_name_or_path"] {
            json.remove(key);
        }
        json.insert("dtype".to_owned(), precision.dtype().into());
        json.insert(CONTEXT_KEY.to_owned(), self.config.context.into());
        let class = self.config.architecture.class();
        json.insert("architectures".to_owned(), vec![class].into());
        let mut text = serde_json::to_vec_pretty(&json).expect("what was JSON can be written as JSON");
        text.push(b'\n');
        text.into()
    }
}

/// The first version of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionZero {
    /// The files by name.
    pub files: BTreeMap<String, Bytes>,
    /// Numbers that the model has.
    pub parameters: u64,
}

/// Opens the directory that a run file names and makes version 0 of it. `None` for a model of
/// another kind.
///
/// # Errors
/// Everything that is wrong with it.
pub fn version_zero(model: &ModelSpec) -> Option<Result<VersionZero, Broken>> {
    let ModelSpec::HuggingFace { path, context, precision } = model else { return None };
    let opened = ModelDir::open(Path::new(path), Some(*context));
    Some(
        opened.and_then(|dir| {
            Ok(VersionZero { files: dir.version(*precision)?, parameters: dir.parameters() })
        }),
    )
}

fn read_config(path: &Path, context: Option<u32>) -> Result<(Config, Map<String, Value>), Fault> {
    let fault = |what: String| Fault::new(CONFIG_FILE, what);
    let text = files::read_own(path, CONFIG_FILE, MAX_COMPANION_BYTES)
        .map_err(|e| fault(format!("failed to read it: {e}")))?;
    let mut json: Map<String, Value> =
        serde_json::from_slice(&text).map_err(|e| fault(format!("it is not JSON: {e}")))?;
    json.remove(CONTEXT_KEY);
    let mut asked = json.clone();
    if let Some(context) = context {
        asked.insert(CONTEXT_KEY.to_owned(), context.into());
    }
    let asked = serde_json::to_vec(&asked).expect("what was JSON can be written as JSON");
    let config = Config::read(&asked).map_err(|e| fault(e.to_string()))?;
    Ok((config, json))
}

fn read_companions(path: &Path, faults: &mut Vec<Fault>) -> BTreeMap<String, Bytes> {
    let mut companions = BTreeMap::new();
    for name in COMPANIONS {
        match files::read_own(path, name, MAX_COMPANION_BYTES) {
            Ok(content) => {
                companions.insert(name.to_owned(), Bytes::from(content));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => faults.push(Fault::new(name, format!("failed to read it: {error}"))),
        }
    }
    companions
}

#[cfg(test)]
mod tests;
