//! What the store does with objects: tried with the client that coordinator and workers use.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use bytes::Bytes;
use millrace_objects::{Created, ObjectError, Objects};
use millrace_schemas::blob::paths;
use millrace_schemas::limits::{COLLECT_AGE_MS, REFRESH_BLOB_MS};
use uuid::Uuid;

use super::finding::Finding;

/// Rounds of two writers who create the same object.
const RACES: usize = 3;
/// Times that an object is overwritten and read back.
const OVERWRITES: usize = 5;
/// Difference of clocks beyond which it is reported. S3 refuses requests from 15 minutes on.
const CLOCK_WARNING: Duration = Duration::from_secs(60);
/// Beyond this, a blob is taken for young that is collected before anything refers to it.
const CLOCK_ERROR: Duration = Duration::from_millis(COLLECT_AGE_MS - REFRESH_BLOB_MS);
/// What the store's clock is rounded to.
const CLOCK_GRAIN: Duration = Duration::from_secs(1);

const NOTHING_RUNS: &str = "no task can be done without it";

/// A part of the store, and who needs which rights there.
struct Area {
    what: &'static str,
    path: String,
    /// Whose work stops without the rights.
    needs: &'static str,
    /// Everybody works there.
    everybody: bool,
    /// Its objects may be removed.
    removes: bool,
}

/// Whether the store answers at all, with these credentials.
pub(super) async fn reach(objects: &Objects, location: &str) -> Result<(), Finding> {
    let Err(error) = objects.get(&paths::check_blob("none")).await else { return Ok(()) };
    let text = error.to_string();
    let says = |word: &str| text.contains(word);
    let finding = |what, remedy: &str| Err(Finding::error(what, words(&error), NOTHING_RUNS, remedy));
    if says("NoSuchBucket") {
        return finding("reachable", &format!("millrace bucket init {location}, if the name is right"));
    }
    if says("RequestTimeTooSkewed") {
        return finding("clock", "set this machine's clock: timedatectl set-ntp true");
    }
    if says("ExpiredToken") || says("TokenRefreshRequired") {
        return finding("credentials", "renew them: they have expired");
    }
    if says("InvalidAccessKeyId") || says("SignatureDoesNotMatch") || says("InvalidToken") {
        return finding(
            "credentials",
            "correct AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN",
        );
    }
    match &error {
        // A role may have other rights and not these. Which, the next lines say.
        ObjectError::Forbidden { .. } if says("AccessDenied") => Ok(()),
        ObjectError::Forbidden { .. } => finding("credentials", "give credentials that the store knows"),
        _ => finding("reachable", "check AWS_ENDPOINT, AWS_REGION, the network and the server"),
    }
}

/// All that is tried with objects. What it writes, it removes.
pub(super) async fn examine(objects: &Objects, location: &str) -> Result<Vec<Finding>> {
    let id = Uuid::now_v7().simple().to_string();
    let mut findings = Vec::new();
    let mut can_write = true;
    for area in areas(&id) {
        let finding = area.rights(objects).await;
        can_write &= !(area.everybody && finding.level == super::Level::Error);
        findings.push(finding);
    }
    if can_write {
        findings.push(upload(objects, &id, location).await);
        findings.push(two_writers(objects, &id).await);
        findings.push(read_after_write(objects, &id).await);
        findings.push(list(objects, &id).await);
    }
    findings.push(clock(objects).await);
    Ok(findings)
}

fn areas(id: &str) -> [Area; 5] {
    let area = |what, path, needs| Area { what, path, needs, everybody: false, removes: false };
    [
        Area {
            everybody: true,
            removes: true,
            ..area("rights: blobs", paths::check_blob(id), "coordinator and all workers")
        },
        area("rights: versions", paths::CHECK_COMMIT.into(), "publish_weights"),
        area("rights: log", paths::CHECK_SEGMENT.into(), "the coordinator"),
        Area { removes: true, ..area("rights: snapshots", paths::check_snapshot(id), "the coordinator") },
        Area { removes: true, ..area("rights: images", paths::check_layer(id), "millrace env push") },
    ]
}

impl Area {
    /// Which rights the credentials have there.
    async fn rights(&self, objects: &Objects) -> Finding {
        let content = Bytes::from_static(b"millrace bucket check");
        let mut missing: Vec<String> = Vec::new();
        let mut note = |right: &str, error: &ObjectError| missing.push(format!("{right}: {}", words(error)));
        // A commit of an earlier check still exists: nobody may remove it, and S3 looks at rights first.
        let written = objects.create(&self.path, content.clone()).await;
        written.as_ref().err().into_iter().for_each(|e| note("write", e));
        match objects.get(&self.path).await {
            Ok(Some(found)) if found == content => {}
            Ok(found) if written.is_ok() => {
                let found = found.map_or_else(|| "nothing".into(), |found| format!("bytes={}", found.len()));
                return Finding::error(
                    self.what,
                    format!("read {found} where bytes={} were written", content.len()),
                    "weights that were just committed are not found",
                    "use a store that is consistent: Amazon S3, SeaweedFS, or a local folder",
                );
            }
            Ok(_) => {}
            Err(e) => note("read", &e),
        }
        let folder = self.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        if let Err(e) = objects.list(folder).await {
            note("list", &e);
        }
        // Where rights to remove are not needed, they clean up, and their absence is right.
        if let (Err(e), true) = (objects.delete(&self.path).await, self.removes) {
            note("delete", &e);
        }
        let all = if self.removes { "write, read, list, delete" } else { "write, read, list" };
        if missing.is_empty() {
            return Finding::fine(self.what, all);
        }
        let only_delete = missing.iter().all(|right| right.starts_with("delete"));
        let found = missing.join("; ");
        let remedy =
            format!("give {} the rights: {all}; terraform/modules/instance_role has the table", self.needs);
        if only_delete {
            return Finding::warning(self.what, found, "what nothing refers to is never collected", remedy);
        }
        if self.everybody {
            return Finding::error(self.what, found, NOTHING_RUNS, remedy);
        }
        Finding::warning(
            self.what,
            found,
            format!("{} works with other credentials, or not at all", self.needs),
            remedy,
        )
    }
}

async fn upload(objects: &Objects, id: &str, location: &str) -> Finding {
    const WHAT: &str = "upload in parts";
    let path = paths::check_blob(&format!("{id}-parts"));
    match objects.try_upload(&path).await {
        Ok(()) => Finding::fine(WHAT, "begun and aborted"),
        Err(e) => Finding::error(
            WHAT,
            words(&e),
            "weights above 64 MB cannot be stored, or leave parts behind",
            format!("give the rights s3:PutObject and s3:AbortMultipartUpload below {location}/runs"),
        ),
    }
}

/// Two writers create the same object at once, and a third comes later.
async fn two_writers(objects: &Objects, id: &str) -> Finding {
    const WHAT: &str = "create-only";
    let wrong = |found: String| {
        Finding::error(
            WHAT,
            found,
            "two workers commit the same version, and the later one overwrites what runs already use",
            "use a store that honours `If-None-Match: *`: Amazon S3, SeaweedFS from 4, MinIO; or a local folder",
        )
    };
    for round in 0..RACES {
        let path = paths::check_blob(&format!("{id}-create-{round}"));
        let raced = race(objects, &path).await;
        let _ = objects.delete(&path).await;
        match raced {
            Ok(None) => {}
            Ok(Some(found)) => return wrong(found),
            Err(e) => return wrong(words(&e)),
        }
    }
    Finding::fine(WHAT, format!("one of two writers wins, {RACES} times; a later one changes nothing"))
}

/// What went wrong, if something did.
async fn race(objects: &Objects, path: &str) -> Result<Option<String>, ObjectError> {
    let writers = [Bytes::from_static(b"writer 1"), Bytes::from_static(b"writer 2")];
    let [first, second] = writers.each_ref().map(|writer| objects.create(path, writer.clone()));
    let (first, second) = tokio::join!(first, second);
    let winner = match (first?, second?) {
        (Created::New, Created::New) => return Ok(Some("two writers created the same object".into())),
        (Created::Exists, Created::Exists) => {
            return Ok(Some("neither of two writers created the object".into()));
        }
        (Created::New, Created::Exists) => &writers[0],
        (Created::Exists, Created::New) => &writers[1],
    };
    let later = objects.create(path, Bytes::from_static(b"writer 3")).await?;
    let found = objects.get(path).await?;
    Ok(match (later, found) {
        (Created::New, _) => Some("a second writer replaced the object of the first".into()),
        (Created::Exists, Some(found)) if found == winner => None,
        (Created::Exists, _) => Some("the object is not the winner's".into()),
    })
}

async fn read_after_write(objects: &Objects, id: &str) -> Finding {
    const WHAT: &str = "read after write";
    let path = paths::check_blob(&format!("{id}-read"));
    let tried = async {
        for time in 0..OVERWRITES {
            let content = Bytes::from(format!("content {time}"));
            objects.put(&path, content.clone()).await?;
            if objects.get(&path).await? != Some(content) {
                return Ok(Some("an object read after it was overwritten has its former content"));
            }
        }
        objects.delete(&path).await?;
        let left = objects.get(&path).await?.is_some();
        Ok::<_, ObjectError>(left.then_some("an object is read after it was removed"))
    };
    consistency(WHAT, tried.await, "what is written is read at once")
}

async fn list(objects: &Objects, id: &str) -> Finding {
    const WHAT: &str = "list after write";
    let folder = paths::check_blob(&format!("{id}-list"));
    let path = format!("{folder}/object");
    let tried = async {
        objects.put(&path, Bytes::from_static(b"listed")).await?;
        if objects.list(&folder).await? != [path.clone()] {
            return Ok(Some("an object that was written is not listed"));
        }
        objects.delete(&path).await?;
        let left = !objects.list(&folder).await?.is_empty();
        Ok::<_, ObjectError>(left.then_some("an object that was removed is listed"))
    };
    consistency(WHAT, tried.await, "what is written is listed at once")
}

fn consistency(what: &'static str, tried: Result<Option<&str>, ObjectError>, fine: &str) -> Finding {
    let found = match tried {
        Ok(None) => return Finding::fine(what, fine),
        Ok(Some(found)) => found.to_owned(),
        // The rights' own line says it better, with the remedy.
        Err(e @ ObjectError::Forbidden { .. }) => {
            return Finding::warning(what, words(&e), "it cannot be tried", "see the rights of blobs");
        }
        Err(e) => words(&e),
    };
    let why = "the coordinator takes what was just written for lost, or collects what is in use";
    Finding::error(what, found, why, "use a store that is consistent, without a cache or replica in between")
}

/// An error in one line: of an answer of S3, its code and message.
fn words(error: &ObjectError) -> String {
    let text = error.to_string();
    let within = |tag: &str| {
        let (_, rest) = text.split_once(&format!("<{tag}>"))?;
        rest.split_once("</").map(|(content, _)| content.to_owned())
    };
    match (within("Code"), within("Message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        (Some(code), None) => code,
        (None, _) => text.split_whitespace().collect::<Vec<_>>().join(" "),
    }
}

#[expect(clippy::disallowed_methods, reason = "the clock itself is what is compared")]
async fn clock(objects: &Objects) -> Finding {
    const WHAT: &str = "clock";
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let before = now();
    let there = match objects.now_ms().await {
        Ok(there) => Duration::from_millis(there),
        Err(e) => {
            let remedy = "give the coordinator the rights to write and read collect/clock";
            return Finding::warning(WHAT, words(&e), "the coordinator cannot collect objects", remedy);
        }
    };
    judge_clock(before, there, now())
}

/// The store's clock, read between two moments of this machine's.
fn judge_clock(before: Duration, there: Duration, after: Duration) -> Finding {
    const WHAT: &str = "clock";
    let behind = before.saturating_sub(there + CLOCK_GRAIN);
    let ahead = there.saturating_sub(after + CLOCK_GRAIN);
    let (skew, word) = if behind > ahead { (behind, "behind") } else { (ahead, "ahead of") };
    let found = format!("the store's is {} s {word} this machine's", skew.as_secs());
    let remedy = "set the clock of the one that is wrong: timedatectl set-ntp true";
    if skew > CLOCK_ERROR {
        let why = "blobs are taken for young and are collected before anything refers to them";
        return Finding::error(WHAT, found, why, remedy);
    }
    if skew > CLOCK_WARNING {
        return Finding::warning(WHAT, found, "from 15 minutes on, S3 refuses all requests", remedy);
    }
    Finding::fine(WHAT, "agrees with this machine's")
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn clocks_are_compared_within_their_grain() {
        let second = Duration::from_secs;
        let day = second(1_000_000);
        for (there, level) in [
            (day, Level::Fine),
            (day - second(1), Level::Fine),
            (day - second(59), Level::Fine),
            (day - second(70), Level::Warning),
            (day + second(70), Level::Warning),
            (day - second(70_000), Level::Error),
            (day + second(70_000), Level::Error),
        ] {
            let finding = judge_clock(day, there, day + Duration::from_millis(5));
            assert_eq!(finding.level, level, "{there:?}: {}", finding.found);
        }
    }
}
