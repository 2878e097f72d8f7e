//! `millrace env`: images of sandboxes in the object store. A push writes the layers, then the
//! manifest, then the name; a host of sandboxes runs `fetch`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use millrace_objects::Objects;
use millrace_schemas::blob::paths::{self, ObjectKind};
use millrace_schemas::image::{ImageManifest, ImageName, ImagePointer, MAX_IMAGE_LAYERS};

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
                push(&objects, image, &name, warm, system).await?;
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

async fn push(objects: &Objects, image: Image, name: &ImageName, warm: u32, system: bool) -> Result<()> {
    if image.layers.is_empty() || image.layers.len() > MAX_IMAGE_LAYERS {
        bail!(
            "the image has layers={}; 1 to {MAX_IMAGE_LAYERS} can be stacked: squash it",
            image.layers.len()
        );
    }
    let mut layers = Vec::new();
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

async fn list(objects: &Objects) -> Result<()> {
    for path in objects.list(paths::IMAGE_NAMES).await? {
        let Some(ObjectKind::ImageName(name)) = paths::parse(&path) else { continue };
        // It may have been removed since.
        let Some(content) = objects.get(&path).await? else { continue };
        let words = match ImagePointer::from_json(&content) {
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
    let Some(content) = objects.get(&paths::image_manifest(&pointer.manifest)).await? else {
        bail!("the manifest {} of image={name} is missing: push the image again", pointer.manifest);
    };
    let manifest = ImageManifest::from_json(pointer.manifest, &content).with_context(fail)?;
    Ok((pointer, manifest))
}
