//! An agent's folder: the task's files before it starts, the reward's after it has ended.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Component, Path};

use millrace_schemas::env_step::Settings;
use millrace_schemas::file_name::is_inner_path;
use serde_json::Value;

/// Text by relative path.
pub(crate) type Files = BTreeMap<String, String>;

/// The files of a row's field, from relative path to text; none if the row has no such field.
pub(crate) fn of_row(row: &Settings, field: &str) -> Result<Files, String> {
    let Some(value) = row.get(field) else { return Ok(Files::new()) };
    let Value::Object(files) = value else {
        return Err(format!("the row's {field} is no object of texts by relative path"));
    };
    let file = |(path, text): (&String, &Value)| match text.as_str() {
        Some(text) if is_inner_path(path) => Ok((path.clone(), text.to_owned())),
        Some(_) => {
            Err(format!("the row's {field} has path={path:?}, which is not a relative path of plain names"))
        }
        None => Err(format!("the row's {field} has no text at path={path:?}")),
    };
    files.iter().map(file).collect()
}

/// Writes files into `folder`. What stands in their way there is removed: the agent may have left
/// links that lead elsewhere.
pub(crate) fn write(folder: &Path, files: &Files) -> io::Result<()> {
    for (path, text) in files {
        if !is_inner_path(path) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("path={path:?} leads elsewhere"),
            ));
        }
        let mut at = folder.to_owned();
        let mut parts = Path::new(path).components().peekable();
        while let Some(Component::Normal(name)) = parts.next() {
            at.push(name);
            let found = fs::symlink_metadata(&at).ok();
            if parts.peek().is_some() {
                if !found.as_ref().is_some_and(fs::Metadata::is_dir) {
                    if found.is_some() {
                        fs::remove_file(&at)?;
                    }
                    fs::create_dir(&at)?;
                }
            } else {
                match found {
                    Some(found) if found.is_dir() => fs::remove_dir_all(&at)?,
                    Some(_) => fs::remove_file(&at)?,
                    None => {}
                }
                OpenOptions::new().write(true).create_new(true).open(&at)?.write_all(text.as_bytes())?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn files(of: &[(&str, &str)]) -> Files {
        of.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn files_never_land_outside_the_folder() {
        let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let victim = outside.path().join("check.py");
        fs::write(&victim, "theirs").unwrap();
        std::os::unix::fs::symlink(outside.path(), folder.path().join("tests")).unwrap();
        std::os::unix::fs::symlink(&victim, folder.path().join("link.py")).unwrap();
        fs::create_dir(folder.path().join("was_a_folder")).unwrap();
        let written = files(&[("tests/check.py", "ours"), ("link.py", "ours"), ("was_a_folder", "ours")]);
        write(folder.path(), &written).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "theirs");
        for (path, text) in &written {
            assert_eq!(fs::read_to_string(folder.path().join(path)).unwrap(), *text, "{path}");
        }
        for hostile in ["../x", "/tmp/x", "a/../../x", ""] {
            assert!(write(folder.path(), &files(&[(hostile, "")])).is_err(), "{hostile:?}");
            let row = Settings::from([("files".to_owned(), json!({ hostile: "" }))]);
            assert!(of_row(&row, "files").is_err(), "{hostile:?}");
        }
    }
}
