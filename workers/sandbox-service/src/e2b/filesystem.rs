//! Calls about files.

use std::time::{Duration, SystemTime};

use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::response::Response;
use millrace_sandbox::live::{Entry, FileKind, LiveSandbox};
use serde_json::{Value, json};

use super::connect::{Code, Fault, answer, asked};
use super::envd::Opened;
use super::paths::{absolute, parent, within};
use super::requests::{ListDir, Move, PathOf};
use crate::hosted::Counts;
use crate::moments::moment;

/// Entries that are told at once.
const ENTRIES: usize = 10_000;

type Answer = Result<Response, Fault>;

/// What something is. Who owns it is not known here: it is told as the one user's.
fn told(path: &str, entry: &Entry) -> Value {
    let (kind, letter) = match entry.kind {
        FileKind::File => ("FILE_TYPE_FILE", '-'),
        FileKind::Folder => ("FILE_TYPE_DIRECTORY", 'd'),
        FileKind::Symlink => ("FILE_TYPE_SYMLINK", 'L'),
        FileKind::Other => ("FILE_TYPE_UNSPECIFIED", '?'),
    };
    let changed = u64::try_from(entry.changed_s).unwrap_or_default();
    let mut told = json!({
        "name": entry.name,
        "type": kind,
        "path": path,
        "size": entry.bytes.to_string(),
        "mode": entry.mode,
        "permissions": permissions(letter, entry.mode),
        "owner": "user",
        "group": "user",
        "modifiedTime": moment(SystemTime::UNIX_EPOCH + Duration::from_secs(changed)),
    });
    if let Some(to) = &entry.leads_to {
        told["symlinkTarget"] = to.as_str().into();
    }
    told
}

fn permissions(kind: char, mode: u32) -> String {
    let letters = "rwxrwxrwx".chars().enumerate();
    let rights = letters.map(|(at, letter)| if mode >> (8 - at) & 1 == 1 { letter } else { '-' });
    std::iter::once(kind).chain(rights).collect()
}

fn missing(path: &str) -> Fault {
    Fault::new(Code::NotFound, format!("there is nothing at {path:?}"))
}

async fn look(live: &LiveSandbox, path: &str) -> Result<Option<Entry>, Fault> {
    Ok(live.look(path).await?)
}

pub(super) async fn stat(Opened(sandbox): Opened, headers: HeaderMap, bytes: Bytes) -> Answer {
    let PathOf { path } = asked(&headers, &bytes)?;
    Counts::add(&sandbox.counts.files);
    let path = absolute(&path);
    let entry = look(&sandbox.live, &path).await?.ok_or_else(|| missing(&path))?;
    Ok(answer(&json!({ "entry": told(&path, &entry) })))
}

pub(super) async fn list(Opened(sandbox): Opened, headers: HeaderMap, bytes: Bytes) -> Answer {
    let ListDir { path, depth } = asked(&headers, &bytes)?;
    Counts::add(&sandbox.counts.files);
    let path = absolute(&path);
    let mut all = Vec::new();
    // Each with how deep what is in it is told.
    let mut folders = vec![(path, depth.max(1))];
    while let Some((folder, depth)) = folders.pop() {
        let entries = match sandbox.live.list(&folder).await {
            Ok(entries) => entries,
            // The first one is what is asked for; another may have gone meanwhile, or be locked.
            Err(error) if all.is_empty() => return Err(error.into()),
            Err(_) => continue,
        };
        for entry in entries {
            if all.len() == ENTRIES {
                let words = format!("there are more than {ENTRIES} entries; list fewer levels at once");
                return Err(Fault::new(Code::InvalidArgument, words));
            }
            let path = within(&folder, &entry.name);
            all.push(told(&path, &entry));
            if depth > 1 && entry.kind == FileKind::Folder {
                folders.push((path, depth - 1));
            }
        }
    }
    Ok(answer(&json!({ "entries": all })))
}

pub(super) async fn make(Opened(sandbox): Opened, headers: HeaderMap, bytes: Bytes) -> Answer {
    let PathOf { path } = asked(&headers, &bytes)?;
    Counts::add(&sandbox.counts.files);
    let path = absolute(&path);
    match look(&sandbox.live, &path).await? {
        None => {}
        Some(entry) if entry.kind == FileKind::Folder => {
            return Err(Fault::new(Code::AlreadyExists, format!("{path:?} is a folder already")));
        }
        Some(_) => {
            return Err(Fault::new(Code::InvalidArgument, format!("{path:?} is there, and no folder")));
        }
    }
    sandbox.live.make_folder(&path).await?;
    entry_at(&sandbox.live, &path).await
}

pub(super) async fn rename(Opened(sandbox): Opened, headers: HeaderMap, bytes: Bytes) -> Answer {
    let Move { source, destination } = asked(&headers, &bytes)?;
    Counts::add(&sandbox.counts.files);
    let (from, to) = (absolute(&source), absolute(&destination));
    sandbox.live.rename(&from, &to).await?;
    entry_at(&sandbox.live, &to).await
}

async fn entry_at(live: &LiveSandbox, path: &str) -> Answer {
    let entry = look(live, path).await?.ok_or_else(|| missing(path))?;
    Ok(answer(&json!({ "entry": told(path, &entry) })))
}

/// Removes something. As with E2B, nothing is as good as removed.
pub(super) async fn remove(Opened(sandbox): Opened, headers: HeaderMap, bytes: Bytes) -> Answer {
    let PathOf { path } = asked(&headers, &bytes)?;
    Counts::add(&sandbox.counts.files);
    let path = absolute(&path);
    if parent(&path) == path {
        return Err(Fault::new(Code::InvalidArgument, "path=/: name what is below it"));
    }
    if look(&sandbox.live, &path).await?.is_some() {
        sandbox.live.remove(&path).await?;
    }
    Ok(answer(&json!({})))
}

#[cfg(test)]
mod tests {
    use super::permissions;

    #[test]
    fn rights_are_told_as_ls_tells_them() {
        assert_eq!(permissions('-', 0o644), "-rw-r--r--");
        assert_eq!(permissions('d', 0o7751), "drwxr-x--x");
    }
}
