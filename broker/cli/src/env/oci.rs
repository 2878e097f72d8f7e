//! An image in OCI's layout: `index.json`, and blobs by their digests.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use millrace_schemas::blob::Sha;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Image;

/// Indexes within one another at most.
const DEPTH: usize = 4;

/// Where a layout lies.
pub(super) enum Layout {
    Folder(PathBuf),
    /// Files by their paths.
    Files(BTreeMap<String, Vec<u8>>),
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
    #[serde(default, rename = "mediaType")]
    media_type: String,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    os: String,
    architecture: String,
}

/// An index or a manifest.
#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    manifests: Vec<Descriptor>,
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Config {
    config: Option<Settings>,
}

#[derive(Deserialize)]
struct Settings {
    #[serde(default, rename = "Env")]
    env: Option<Vec<String>>,
}

/// The image of a layout for this machine's architecture.
pub(super) fn image(layout: &Layout) -> Result<Image> {
    let mut document: Document = parse("index.json", &layout.file("index.json")?)?;
    for _ in 0..DEPTH {
        if let Some(config) = &document.config {
            let config: Config = parse("the image's configuration", &layout.blob(config)?)?;
            let env = config.config.and_then(|settings| settings.env).unwrap_or_default();
            let env = env.iter().filter_map(|line| line.split_once('='));
            let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            let layers = document.layers.iter().map(|layer| layout.layer(layer)).collect::<Result<_>>()?;
            return Ok(Image { layers, env });
        }
        let next = choose(&document.manifests)?;
        document = parse(&next.digest, &layout.blob(next)?)?;
    }
    bail!("its indexes lead to one another")
}

fn choose(manifests: &[Descriptor]) -> Result<&Descriptor> {
    if let [only] = manifests {
        return Ok(only);
    }
    let ours = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let fits = |platform: &Platform| platform.os == "linux" && platform.architecture == ours;
    let mut fitting = manifests.iter().filter(|one| one.platform.as_ref().is_some_and(fits));
    match (fitting.next(), fitting.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => bail!("manifests={} and none is for linux/{ours}", manifests.len()),
        (Some(_), Some(_)) => {
            bail!("several of its manifests are for linux/{ours}: push a layout of one image")
        }
    }
}

fn parse<T: DeserializeOwned>(what: &str, content: &[u8]) -> Result<T> {
    serde_json::from_slice(content).with_context(|| format!("failed to read {what}"))
}

impl Layout {
    fn file(&self, path: &str) -> Result<Vec<u8>> {
        let found = match self {
            Self::Folder(folder) => std::fs::read(folder.join(path)).ok(),
            Self::Files(files) => files.get(path).cloned(),
        };
        found.with_context(|| format!("the layout lacks {path}"))
    }

    /// The blob of a digest, proved.
    fn blob(&self, of: &Descriptor) -> Result<Vec<u8>> {
        let digest = of.digest.strip_prefix("sha256:").context("its digests must be sha256:…")?;
        let wanted: Sha = digest.parse()?;
        let content = self.file(&format!("blobs/sha256/{wanted}"))?;
        let found = Sha::of(&content);
        ensure!(found == wanted, "the blob {wanted} has the hash {found}: the layout is damaged");
        Ok(content)
    }

    fn layer(&self, of: &Descriptor) -> Result<Vec<u8>> {
        let form = of.media_type.as_str();
        let is_tar =
            ["tar", "tar+gzip", "tar+zstd", "tar.gzip", "tar.zstd"].iter().any(|end| form.ends_with(end));
        let is_here = !form.contains("nondistributable") && !form.contains("foreign");
        ensure!(is_tar && is_here, "a layer is {form:?}; it must be a tar, by itself or within gzip or zstd");
        self.blob(of)
    }
}
