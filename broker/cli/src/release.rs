//! `millrace release`: everything that an instance needs, in one file that is named by its hash.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use flate2::{Compression, GzBuilder};
use millrace_queue::{Created, Objects};
use millrace_schemas::blob::Sha;
use serde::Serialize;

use super::term::say;

/// Programs of an instance.
const PROGRAMS: [&str; 4] = ["millrace", "millrace-worker", "millrace-sandbox", "millrace-agent-guard"];
/// The first bytes of a program of this system.
const ELF: &[u8] = b"\x7fELF";
/// What an instance runs once, in the repository and in the bundle.
const INSTALLERS: [(&str, &str); 3] = [
    ("infra/images/install.sh", "install.sh"),
    ("infra/images/nats-node.sh", "nats-node.sh"),
    ("infra/images/requirements.txt", "requirements.txt"),
];
/// Folders of the repository, and where they are in the bundle.
const FOLDERS: [(&str, &str); 2] = [("infra/images/systemd", "systemd"), ("workers/python", "python")];

/// Arguments of `millrace release`.
#[derive(Debug, clap::Args)]
pub(super) struct ReleaseArgs {
    /// Folder for the bundle
    #[arg(long, value_name = "DIR", default_value = "target/release-bundle")]
    out: PathBuf,
    /// Upload it to releases/SHA256.tar.gz below this location: s3://BUCKET/PREFIX, or a folder
    #[arg(long, value_name = "LOCATION")]
    to: Option<String>,
    /// Folder of the programs [default: the one of this program]
    #[arg(long, value_name = "DIR")]
    bin: Option<PathBuf>,
    /// The repository
    #[arg(long, value_name = "DIR", default_value = ".")]
    source: PathBuf,
}

/// Files of the bundle by their paths in it.
type Files = BTreeMap<String, BundleFile>;

struct BundleFile {
    content: Vec<u8>,
    executable: bool,
}

/// `manifest.json` of a bundle.
#[derive(Serialize)]
struct Manifest<'a> {
    version: &'a str,
    target: &'a str,
    /// The sha256 of each file by its path.
    files: BTreeMap<&'a str, Sha>,
}

impl ReleaseArgs {
    pub(super) async fn run(self) -> Result<ExitCode> {
        let files = self.files()?;
        let bundle = pack(files)?;
        let sha256 = Sha::of(&bundle);
        let path = self.out.join(format!("millrace-{}-{}.tar.gz", env!("CARGO_PKG_VERSION"), target()));
        std::fs::write(&path, &bundle).with_context(|| format!("failed to write path={}", path.display()))?;
        if let Some(location) = &self.to {
            upload(location, sha256, bundle).await?;
        }
        say(format_args!("{sha256}  {}", path.display()));
        Ok(ExitCode::SUCCESS)
    }

    fn files(&self) -> Result<Files> {
        let mut files = Files::new();
        let bin = match &self.bin {
            Some(bin) => bin.clone(),
            None => std::env::current_exe().context("failed to find this program")?.with_file_name(""),
        };
        if let Some(name) = PROGRAMS.into_iter().find(|name| !bin.join(name).is_file()) {
            let path = bin.join(name);
            bail!("there is no program path={}; `make programs` builds all of them", path.display());
        }
        for (from, to) in INSTALLERS {
            let path = self.source.join(from);
            if !path.is_file() {
                bail!(
                    "there is no file path={}; --source is the folder of Millrace's repository",
                    path.display()
                );
            }
            files.insert(to.to_owned(), read(&path)?);
        }
        for (from, to) in FOLDERS {
            add_folder(&self.source.join(from), to, &mut files)?;
        }
        std::fs::create_dir_all(&self.out)
            .with_context(|| format!("failed to make the folder --out {}", self.out.display()))?;
        for name in PROGRAMS {
            files.insert(format!("bin/{name}"), self.program(&bin.join(name))?);
        }
        Ok(files)
    }

    /// A program without its line numbers, which are more than half of its bytes. The names of functions stay.
    fn program(&self, path: &Path) -> Result<BundleFile> {
        let whole = read(path)?;
        if !whole.content.starts_with(ELF) {
            return Ok(whole);
        }
        let to = self.out.join(format!("stripped-{}", std::process::id()));
        let stripped = Command::new("strip").arg("--strip-debug").arg("-o").arg(&to).arg(path).output();
        let content = match stripped {
            Ok(ran) if ran.status.success() => std::fs::read(&to).map_err(|error| error.to_string()),
            Ok(ran) => Err(String::from_utf8_lossy(&ran.stderr).trim().to_owned()),
            Err(error) => Err(error.to_string()),
        };
        // It may not be there.
        let _ = std::fs::remove_file(&to);
        Ok(match content {
            Ok(content) => BundleFile { content, ..whole },
            Err(reason) => {
                say(format_args!(
                    "{}: with its line numbers, since `strip` failed: {reason}",
                    path.display()
                ));
                whole
            }
        })
    }
}

/// Adds what is below `folder`, without what Python leaves behind.
fn add_folder(folder: &Path, to: &str, files: &mut Files) -> Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| {
        format!("failed to read folder={}; is --source the repository?", folder.display())
    })?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let made = name == "__pycache__" || name.starts_with('.') || name.ends_with(".egg-info");
        let to = format!("{to}/{name}");
        match path.is_dir() {
            _ if made => {}
            true => add_folder(&path, &to, files)?,
            false => {
                files.insert(to, read(&path)?);
            }
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<BundleFile> {
    use std::os::unix::fs::PermissionsExt;
    let failed = || format!("failed to read path={}", path.display());
    let content = std::fs::read(path).with_context(failed)?;
    let mode = std::fs::metadata(path).with_context(failed)?.permissions().mode();
    Ok(BundleFile { content, executable: mode & 0o111 != 0 })
}

/// The archive. The same files give the same bytes: sorted, with neither times nor owners.
fn pack(mut files: Files) -> Result<Vec<u8>> {
    let manifest = Manifest {
        version: env!("CARGO_PKG_VERSION"),
        target: &target(),
        files: files.iter().map(|(path, file)| (path.as_str(), Sha::of(&file.content))).collect(),
    };
    let content = (serde_json::to_string_pretty(&manifest)? + "\n").into_bytes();
    files.insert("manifest.json".into(), BundleFile { content, executable: false });
    let compressed = GzBuilder::new().mtime(0).write(Vec::new(), Compression::default());
    let mut archive = tar::Builder::new(compressed);
    for (path, BundleFile { content, executable }) in &files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(if *executable { 0o755 } else { 0o644 });
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        archive
            .append_data(&mut header, path, content.as_slice())
            .with_context(|| format!("failed to pack path={path}"))?;
    }
    let mut compressed = archive.into_inner().context("failed to end the archive")?;
    compressed.flush()?;
    compressed.finish().context("failed to compress the archive")
}

async fn upload(location: &str, sha256: Sha, bundle: Vec<u8>) -> Result<()> {
    let key = format!("releases/{sha256}.tar.gz");
    let created = Objects::open(location)?
        .create(&key, bundle.into())
        .await
        .with_context(|| format!("failed to upload to={location} key={key}"))?;
    let words = match created {
        Created::New => "uploaded",
        Created::Exists => "was there already",
    };
    say(format_args!("{}/{key}: {words}", location.trim_end_matches('/')));
    Ok(())
}

/// The machines on which the programs run.
fn target() -> String {
    let libc = if cfg!(target_env = "musl") { "musl" } else { "gnu" };
    format!("{}-unknown-{}-{libc}", std::env::consts::ARCH, std::env::consts::OS)
}
