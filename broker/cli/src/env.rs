//! `millrace env`: images of sandboxes in the object store. A push writes the layers, then the
//! manifest, then the name; a host of sandboxes runs `fetch`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use millrace_objects::Objects;
use millrace_schemas::BlobRef;
use millrace_schemas::blob::Sha;
use millrace_schemas::blob::paths::{self, ObjectKind};
use millrace_schemas::image::{ImageError, ImageManifest, ImageName, ImagePointer, MAX_IMAGE_LAYERS};

use super::connect::ConnectionArgs;
use super::term::say;

mod source;
mod oci;
mod pack;
mod fetch;

/// Arguments of `millrace env`.
#[derive(Debug, clap::Args)]
pub(super) struct EnvArgs {
    #[command(subcommand)]
    command: EnvCommand,
}

#[derive(Debug, clap::Subcommand)]
enum EnvCommand {
    /// Store an image and point a name to it
    Push {
        /// A folder of files, an OCI layout (a folder or a tar of one), or a tar of files
        source: PathBuf,
        /// NAME or NAME:TAG
        name: ImageName,
        /// Sandboxes that each host holds ready
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000))]
        warm: u32,
        /// Show the machine's own programs (/usr, /bin, /lib*) over its files
        #[arg(long)]
        system: bool,
    },
    /// Store an image made of another one and a layer over it
    Commit {
        /// The layer: a tar, by itself or within gzip or zstd
        layer: PathBuf,
        /// NAME or NAME:TAG
        name: ImageName,
        /// The manifest of the image below; `millrace env ls` shows it. Default: the layer is all
        #[arg(long, value_name = "SHA256")]
        on: Option<Sha>,
        /// Show the machine's own programs (/usr, /bin, /lib*) over its files
        #[arg(long)]
        system: bool,
    },
    /// List the images
    Ls,
    /// Remove a name; what only it refers to is collected after a day
    Rm {
        /// NAME or NAME:TAG
        name: ImageName,
    },
    /// Bring the layers of an image into a host's cache, proved, and print what it is made of
    Fetch {
        /// NAME or NAME:TAG
        name: ImageName,
        /// The cache's folder
        cache: PathBuf,
    },
}

/// An image before it is stored.
struct Image {
    /// The lowest first.
    layers: Vec<Vec<u8>>,
    env: BTreeMap<String, String>,
}

impl EnvArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> Result<ExitCode> {
        let objects = connection.open_objects()?;
        match self.command {
            EnvCommand::Push { source, name, warm, system } => {
                let image = source::read(&source)
                    .with_context(|| format!("failed to read the image source={}", source.display()))?;
                push(&objects, Vec::new(), image, &name, (warm, system)).await?;
            }
            EnvCommand::Commit { layer, name, on, system } => {
                commit(&objects, &layer, &name, on, system).await?
            }
            EnvCommand::Ls => list(&objects).await?,
            EnvCommand::Rm { name } => {
                let path = paths::image_name(&name);
                if objects.get(&path).await?.is_none() {
                    bail!("image={name} is not there; `millrace env ls` lists them");
                }
                objects.delete(&path).await?;
                say(format_args!("{name} removed"));
            }
            EnvCommand::Fetch { name, cache } => fetch::run(&objects, &name, &cache).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Stores an image over layers that are in the store already.
async fn push(
    objects: &Objects,
    mut layers: Vec<BlobRef>,
    image: Image,
    name: &ImageName,
    (warm, system): (u32, bool),
) -> Result<()> {
    let count = layers.len() + image.layers.len();
    if count == 0 || count > MAX_IMAGE_LAYERS {
        bail!("the image has layers={count}; 1 to {MAX_IMAGE_LAYERS} can be stacked: squash it");
    }
    for layer in image.layers {
        layers.push(objects.put_hashed(paths::layer, layer.into()).await?);
    }
    let bytes: u64 = layers.iter().map(|layer| layer.bytes).sum();
    let manifest = ImageManifest { version: 1, layers, env: image.env };
    // Written although it may be there: it is young afterwards, and whole.
    let stored = objects.put_hashed(paths::image_manifest, manifest.to_json().into()).await?;
    let pointer = ImagePointer { manifest: stored.sha256, system, warm };
    objects.put(&paths::image_name(name), pointer.to_json().into()).await?;
    let (count, megabytes) = (manifest.layers.len(), bytes as f64 / 1e6);
    say(format_args!("{name} is {}: {count} layers, {megabytes:.1} MB", stored.sha256));
    Ok(())
}

/// A layer over the image of a manifest.
async fn commit(
    objects: &Objects,
    layer: &Path,
    name: &ImageName,
    on: Option<Sha>,
    system: bool,
) -> Result<()> {
    let content =
        std::fs::read(layer).with_context(|| format!("failed to read the layer {}", layer.display()))?;
    let (below, env) = match on {
        None => (Vec::new(), BTreeMap::new()),
        Some(on) => {
            let ImageManifest { layers, env, .. } = manifest(objects, on).await?;
            if !is_named(objects, on).await? {
                // The collector may be about to take what no name refers to: written again it is young.
                for layer in &layers {
                    let path = paths::layer(&layer.sha256);
                    objects.put_hashed(paths::layer, objects.get_hashed(&path, layer).await?).await?;
                }
            }
            (layers, env)
        }
    };
    push(objects, below, Image { layers: vec![content], env }, name, (0, system)).await
}

/// Whether a name points to this manifest.
async fn is_named(objects: &Objects, manifest: Sha) -> Result<bool> {
    let all = pointers(objects).await?;
    Ok(all.into_iter().any(|(_, pointer)| pointer.is_ok_and(|pointer| pointer.manifest == manifest)))
}

/// All names, and what they point to.
async fn pointers(objects: &Objects) -> Result<Vec<(ImageName, Result<ImagePointer, ImageError>)>> {
    let mut all = Vec::new();
    for path in objects.list(paths::IMAGE_NAMES).await? {
        let Some(ObjectKind::ImageName(name)) = paths::parse(&path) else { continue };
        // It may have been removed since.
        if let Some(content) = objects.get(&path).await? {
            all.push((name, ImagePointer::from_json(&content)));
        }
    }
    Ok(all)
}

async fn list(objects: &Objects) -> Result<()> {
    for (name, pointer) in pointers(objects).await? {
        let words = match pointer {
            Ok(pointer) => {
                let machine = if pointer.system { ", with the machine's programs" } else { "" };
                format!("{}, warm {}{machine}", pointer.manifest, pointer.warm)
            }
            Err(error) => format!("cannot be read: {error}"),
        };
        say(format_args!("{:<40} {words}", name.to_string()));
    }
    Ok(())
}

/// The manifest of a name.
async fn find(objects: &Objects, name: &ImageName) -> Result<(ImagePointer, ImageManifest)> {
    let Some(content) = objects.get(&paths::image_name(name)).await? else {
        bail!("image={name} is not there; `millrace env push` makes it");
    };
    let fail = || format!("failed to read the image {name}");
    let pointer = ImagePointer::from_json(&content).with_context(fail)?;
    let manifest = manifest(objects, pointer.manifest).await.with_context(fail)?;
    Ok((pointer, manifest))
}

async fn manifest(objects: &Objects, wanted: Sha) -> Result<ImageManifest> {
    let Some(content) = objects.get(&paths::image_manifest(&wanted)).await? else {
        bail!("the manifest {wanted} is missing: push the image again");
    };
    Ok(ImageManifest::from_json(wanted, &content)?)
}
