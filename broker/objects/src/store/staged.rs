//! What a killed writer left in a folder. A write goes to `<path>#<number>` first, and the client hides
//! such names from its listings.

use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::{Listed, ObjectError, Objects, parse};

impl Objects {
    /// Writes into a folder that have not ended, in the order of their paths: those that go on, and those
    /// whose writer was killed. No other store has any.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub async fn list_staged(&self) -> Result<Vec<Listed>, ObjectError> {
        let Some(folder) = self.folder.clone() else { return Ok(Vec::new()) };
        let found = tokio::task::spawn_blocking(move || walk(&folder)).await.expect("walking does not panic");
        found.map_err(|error| unavailable("list", "", &error))
    }

    /// The file of a staged write; `None` for any other path.
    fn staged_file(&self, path: &str) -> Option<PathBuf> {
        // A path that leads out of the folder is none of an object.
        parse(staged_object(path)?).ok()?;
        Some(self.folder.as_ref()?.join(path))
    }

    /// Removes a staged write unless it went on after it was listed. Returns whether it was removed;
    /// `None` if it is something else.
    pub(super) async fn delete_staged(&self, listed: &Listed) -> Result<Option<bool>, ObjectError> {
        let Some(file) = self.staged_file(&listed.path) else { return Ok(None) };
        let expected = listed.clone();
        let removed = tokio::task::spawn_blocking(move || {
            let found = listed_as(expected.path.clone(), &file.symlink_metadata()?);
            let same = found == expected;
            if same {
                std::fs::remove_file(&file)?;
            }
            Ok::<_, io::Error>(same)
        });
        match removed.await.expect("removing does not panic") {
            Ok(removed) => Ok(Some(removed)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some(false)),
            Err(error) => Err(unavailable("delete", &listed.path, &error)),
        }
    }
}

/// The object that a write is staged for, by the write's path; `None` if it is not the path of one.
#[must_use]
pub fn staged_object(path: &str) -> Option<&str> {
    let (object, number) = path.split_once('#')?;
    (!number.is_empty() && number.bytes().all(|c| c.is_ascii_digit())).then_some(object)
}

/// The staged writes below `folder`.
fn walk(folder: &Path) -> io::Result<Vec<Listed>> {
    let (mut found, mut left) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(at) = left.pop() {
        let entries = match std::fs::read_dir(&at) {
            Ok(entries) => entries,
            // It was removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound && at != folder => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            if kind.is_dir() {
                left.push(path);
                continue;
            }
            let name = path.strip_prefix(folder).ok().and_then(Path::to_str);
            let Some(name) = name.filter(|name| kind.is_file() && staged_object(name).is_some()) else {
                continue;
            };
            match entry.metadata() {
                Ok(metadata) => found.push(listed_as(name.to_owned(), &metadata)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    found.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// As a listing shows a file. Its time is of the clock that the folder's objects have theirs from.
fn listed_as(path: String, metadata: &Metadata) -> Listed {
    let modified = metadata.modified().ok().and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
    let modified_ms = modified.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
    Listed { path, bytes: metadata.len(), modified_ms }
}

fn unavailable(action: &'static str, path: &str, error: &io::Error) -> ObjectError {
    ObjectError::Unavailable { action, path: path.to_owned(), reason: error.to_string() }
}
