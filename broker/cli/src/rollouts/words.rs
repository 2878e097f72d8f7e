//! Tokens as text: by the model's tokenizer, by what environments recorded beside them, or, in games
//! of bare tokens, by what each token means there.

use std::path::Path;

use anyhow::{Context, Result};
use bytes::Bytes;
use millrace_policy::CONFIG_FILE;
use millrace_policy::text_codec::{self, Codec, TOKENIZER_FILE};
use millrace_queue::{ObjectError, Objects};
use millrace_schemas::blob::paths;
use millrace_schemas::env_step::{EnvStepDone, Speaker};
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::submit::ModelSpec;
use millrace_schemas::{PolicyVersion, RunId, RunSpec};

use super::content::Part;
use super::games::Game;

/// What makes text of a run's tokens.
pub(super) struct Words {
    codec: Option<Codec>,
}

impl Words {
    /// Reads the tokenizer: of the directory `model` if it is given, else of the run's version 0, whose
    /// files are never collected, else of the run file's model if its directory is here.
    ///
    /// # Errors
    /// The directory that is given has none, or a tokenizer is damaged; the object store fails.
    pub(super) async fn of(spec: &RunSpec, objects: &Objects, model: Option<&Path>) -> Result<Self> {
        if let Some(dir) = model {
            let codec = Codec::read(|name| file_of(dir, name));
            let codec = codec.with_context(|| format!("failed to read --model {}", dir.display()))?;
            return Ok(Self { codec: Some(codec) });
        }
        if !spec.parts().any(|domain| domain.environment.speaks_text()) {
            return Ok(Self { codec: None });
        }
        let stored = stored_files(objects, &spec.name).await?;
        let local = match &spec.model {
            ModelSpec::HuggingFace { path, .. } => Some(Path::new(path)),
            _ => None,
        };
        let find = |name: &str| {
            let stored = stored.iter().find(|(stored, _)| stored == name).map(|(_, content)| content.clone());
            stored.or_else(|| file_of(local?, name))
        };
        let codec = find(TOKENIZER_FILE).is_some().then(|| Codec::read(find)).transpose();
        Ok(Self { codec: codec.context("failed to read the tokenizer of the run's model")? })
    }

    /// What to do about tokens that stay numbers; `None` if text can be made of them.
    pub(super) fn lacks(&self, spec: &RunSpec) -> Option<String> {
        let speaks = spec.parts().any(|domain| domain.environment.speaks_text());
        (speaks && self.codec.is_none()).then(|| {
            let model = match &spec.model {
                ModelSpec::HuggingFace { path, .. } => format!(", nor is it in model.path={path:?} on this machine"),
                _ => String::new(),
            };
            format!(
                "no {TOKENIZER_FILE} is with version 0 of {} in the object store{model}: shown is what environments \
                 recorded as text, else token ids; --model DIR of the model's directory shows all of it",
                spec.name
            )
        })
    }

    /// The text of each part; `None` where there are only token ids.
    pub(super) fn texts(&self, game: Option<Game>, parts: &[Part]) -> Vec<Option<String>> {
        let mut game = game;
        let text = |(at, part): (usize, &Part)| match (&mut game, part) {
            (Some(game), Part::Environment { done, .. }) => Some(game.observed(&done.observation)),
            (Some(game), Part::Policy { done, .. }) => Some(game.acted(&done.tokens)),
            (None, Part::Environment { done, .. }) => self.observed(done),
            (None, Part::Policy { done, .. }) => self.decoded(&done.tokens).or_else(|| {
                let next = parts[at + 1..].iter().find_map(|part| match part {
                    Part::Environment { done, .. } => Some(done),
                    Part::Policy { .. } => None,
                });
                said(next?, Speaker::Policy)
            }),
        };
        parts.iter().enumerate().map(text).collect()
    }

    fn observed(&self, done: &EnvStepDone) -> Option<String> {
        if done.observation.is_empty() {
            // The last step has no tokens. It may have a text all the same.
            return Some(said(done, Speaker::Environment).unwrap_or_default());
        }
        self.decoded(&done.observation).or_else(|| said(done, Speaker::Environment))
    }

    /// With the names of special tokens: what was sampled, and nothing else.
    fn decoded(&self, tokens: &[u32]) -> Option<String> {
        self.codec.as_ref()?.decode(tokens, true).ok()
    }
}

fn said(done: &EnvStepDone, speaker: Speaker) -> Option<String> {
    let texts = done.said.iter().filter(|said| said.speaker == speaker).map(|said| said.text.as_str());
    let texts: Vec<&str> = texts.collect();
    (!texts.is_empty()).then(|| texts.join("\n\n"))
}

fn file_of(dir: &Path, name: &str) -> Option<Bytes> {
    std::fs::read(dir.join(name)).ok().map(Bytes::from)
}

/// The files of the text codec among those of version 0; none before that exists.
async fn stored_files(objects: &Objects, run: &RunId) -> Result<Vec<(String, Bytes)>> {
    let path = paths::manifest(run, PolicyVersion(0));
    let Some(bytes) = objects.get(&path).await? else { return Ok(Vec::new()) };
    let manifest: Manifest =
        serde_json::from_slice(&bytes).with_context(|| format!("failed to read path={path}"))?;
    let mut files = Vec::new();
    for file in &manifest.files {
        if file.name != CONFIG_FILE && !text_codec::FILES.contains(&file.name.as_str()) {
            continue;
        }
        match objects.get_file(run, file).await {
            Ok(content) => files.push((file.name.clone(), content)),
            Err(ObjectError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(files)
}
