//! `millrace bucket`: what is wrong with an object store, and what is missing on its bucket.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use millrace_aws::{Bucket, Presence};
use millrace_objects::{BucketAccess, ObjectError, Objects};

use super::connect::ConnectionArgs;
use super::term::say;
use finding::{Finding, Level};
use settings::Settings;

mod create;
mod data;
mod finding;
mod settings;

/// Time to get credentials; a role's come over the network.
const CREDENTIALS: Duration = Duration::from_secs(15);

/// Arguments of `millrace bucket`.
#[derive(Debug, clap::Args)]
pub(super) struct BucketArgs {
    #[command(subcommand)]
    command: BucketCommand,
}

#[derive(Debug, clap::Subcommand)]
enum BucketCommand {
    /// Report what is wrong with an object store: settings, rights, and what its server promises. Fails if
    /// something would be lost
    Check {
        /// s3://BUCKET/PREFIX, or a folder [default: --objects]
        location: Option<String>,
    },
    /// Create the bucket or folder, set what is missing on it, and check it. Nothing is removed or weakened
    Init {
        /// s3://BUCKET/PREFIX, or a folder [default: --objects]
        location: Option<String>,
    },
}

/// What a location names.
enum Place {
    Folder(PathBuf),
    Bucket(BucketAccess),
}

impl BucketArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> Result<ExitCode> {
        let (given, init) = match self.command {
            BucketCommand::Check { location } => (location, false),
            BucketCommand::Init { location } => (location, true),
        };
        let location = given.map_or_else(|| connection.objects_location(), Ok)?;
        let place = Place::find(&location).await?;
        if init {
            create::init(&place).await?;
        }
        let findings = examine(&place, &location).await?;
        findings.iter().flat_map(Finding::lines).for_each(say);
        let count = |level| findings.iter().filter(|finding| finding.level == level).count();
        let (errors, warnings) = (count(Level::Error), count(Level::Warning));
        say(format_args!("errors: {errors}, warnings: {warnings}"));
        Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl Place {
    async fn find(location: &str) -> Result<Self> {
        if location == "memory:" {
            bail!(
                "object store value=\"memory:\" ends with its process; give s3://BUCKET/PREFIX or a folder"
            );
        }
        let access = tokio::time::timeout(CREDENTIALS, Objects::bucket_access(location)).await;
        let access = access.context(
            "failed to get credentials: who gives them does not answer; set AWS_ACCESS_KEY_ID and \
             AWS_SECRET_ACCESS_KEY, or give this machine a role",
        )?;
        match access {
            Ok(Some(access)) => return Ok(Self::Bucket(access)),
            Ok(None) => {}
            Err(e @ ObjectError::Location { .. }) => return Err(e.into()),
            Err(e) => {
                let remedy = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this machine a role";
                return Err(anyhow::Error::from(e).context(format!("there are no credentials; {remedy}")));
            }
        }
        let folder = location.strip_prefix("file://").unwrap_or(location);
        if folder.is_empty() || folder.contains("://") {
            bail!(
                "object store value={location:?} is neither s3://BUCKET/PREFIX nor a folder; other schemes are not known"
            );
        }
        // The name of a bucket, most likely: a folder of that name would be made, or looked for, in vain.
        if folder == location && !folder.contains('/') {
            bail!(
                "object store value={location:?} has no scheme; give s3://{location} for a bucket, ./{location} for a folder"
            );
        }
        Ok(Self::Folder(Path::new(folder).into()))
    }
}

async fn examine(place: &Place, location: &str) -> Result<Vec<Finding>> {
    match place {
        Place::Folder(folder) => {
            if !folder.is_dir() {
                let remedy = format!(
                    "create it on the volume that all machines share: millrace bucket init {location}"
                );
                let why = "every process keeps its objects there";
                return Ok(vec![Finding::error("folder", "there is none", why, remedy)]);
            }
            data::examine(&Objects::open(location)?, location).await
        }
        Place::Bucket(access) => {
            let bucket = Bucket::connect(access).await;
            let mut findings = Vec::new();
            let objects = Objects::open(location)?;
            if let Err(finding) = data::reach(&objects, location).await {
                // The server's own words for a wrong region differ; its header does not.
                let elsewhere = bucket.presence().await;
                findings.push(
                    elsewhere.map_or(finding.clone(), |found| region(&found, access).unwrap_or(finding)),
                );
                return Ok(findings);
            }
            findings.push(Finding::fine("credentials", format!("accepted, key {}", access.key_id)));
            findings
                .push(Finding::fine("reachable", access.endpoint.clone().unwrap_or_else(|| "AWS".into())));
            let found = bucket.presence().await;
            findings.push(found.ok().and_then(|found| region(&found, access)).unwrap_or_else(|| {
                Finding::fine("region", format!("{}; the server names none", access.region))
            }));
            let settings = Settings::read(&bucket).await;
            findings.extend(settings.judge(&access.at, location));
            findings.extend(data::examine(&objects, location).await?);
            Ok(findings)
        }
    }
}

/// What is to be said of the bucket's region.
fn region(found: &Presence, access: &BucketAccess) -> Option<Finding> {
    match found {
        Presence::Here(Some(region)) => Some(Finding::fine("region", region.clone())),
        Presence::Elsewhere(region) => Some(Finding::error(
            "region",
            format!("the bucket is in {region}, requests are signed for {}", access.region),
            "the server refuses them, or each goes around half the world",
            format!("export AWS_REGION={region}"),
        )),
        Presence::Here(None) | Presence::Missing | Presence::Forbidden => None,
    }
}
