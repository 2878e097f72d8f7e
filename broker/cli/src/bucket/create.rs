//! `millrace bucket init`: creates what is not there and sets what is missing, as often as it is called.

use anyhow::{Context, Result, bail};
use millrace_aws::{AwsError, Bucket, Presence, PublicBlock, Setting, Versioning};
use millrace_objects::BucketLocation;

use super::super::term::say;
use super::Place;
use super::settings::Settings;

/// Lengths of a bucket's name.
const NAME: std::ops::RangeInclusive<usize> = 3..=63;

/// Creates the place and sets what is missing on it.
pub(super) async fn init(place: &Place) -> Result<()> {
    let access = match place {
        Place::Folder(folder) => {
            let fail = || format!("failed to create folder={}", folder.display());
            return std::fs::create_dir_all(folder).with_context(fail);
        }
        Place::Bucket(access) => access,
    };
    let bucket = Bucket::connect(access).await;
    match bucket.presence().await? {
        Presence::Here(_) => {}
        Presence::Elsewhere(region) => bail!(
            "bucket={:?} is in region={region:?}, not in {:?}; export AWS_REGION={region}",
            access.at.bucket,
            access.region
        ),
        Presence::Forbidden => bail!(
            "bucket={:?} is another account's, or the credentials may not see it; choose another name, or credentials \
             with the right s3:ListBucket",
            access.at.bucket
        ),
        Presence::Missing => {
            check_name(&access.at.bucket)?;
            bucket.create().await?;
            say(format_args!("  created  {}", access.at.bucket));
        }
    }
    set_missing(&bucket, &access.at).await
}

async fn set_missing(bucket: &Bucket, at: &BucketLocation) -> Result<()> {
    let settings = Settings::read(bucket).await;
    // Before versioning: while it is off, nobody has decided how long overwritten objects are kept.
    let missing = settings.missing_rules(at);
    if !missing.is_empty() {
        set("lifecycle", bucket.add_rules(at, missing).await)?;
    }
    if settings.versioning == Setting::Known(Versioning::Unset) {
        set("versioning", bucket.enable_versioning().await)?;
    }
    if settings.encryption == Setting::Known(None) {
        set("encryption", bucket.encrypt().await)?;
    }
    // A bucket that is public on purpose would close: the check reports it instead.
    let is_open = matches!(&settings.public_block, Setting::Known(block) if *block != PublicBlock::ALL);
    if is_open && settings.public_policy != Setting::Known(true) {
        set("public access", bucket.block_public().await)?;
    }
    Ok(())
}

/// Reports what was set. A server that reads a setting and does not set it lacks it: the check says so.
fn set(what: &str, done: Result<(), AwsError>) -> Result<()> {
    done.with_context(|| {
        format!("failed to set {what}; what was set before stays, and init continues there")
    })?;
    say(format_args!("  set      {what}"));
    Ok(())
}

/// What AWS takes for a new bucket.
fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let ends = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if NAME.contains(&name.len()) && name.chars().all(plain) && name.starts_with(ends) && name.ends_with(ends)
    {
        return Ok(());
    }
    bail!(
        "bucket={name:?}: give a new bucket 3 to 63 characters of a-z, 0-9 and -, no - at an end; a name with dots fails TLS"
    )
}
