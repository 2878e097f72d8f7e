//! Names of files that come from another process, and the one way from such a name to a path.

use std::path::{Component, Path, PathBuf};

use crate::limits::{MAX_FILE_NAME_CHARS, MAX_PATH_BYTES};

/// A name that could lead out of its folder, or that some file systems refuse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "file name={0:?} is no plain name: 1 to {MAX_FILE_NAME_CHARS} letters, digits, '.', '-' and '_', no '.' first"
)]
pub struct NotAFileName(String);

/// Refuses a name that is not plain.
///
/// # Errors
/// It has a character other than a letter, a digit, `.`, `-` and `_`, begins with `.`, is empty or
/// too long.
pub fn check(name: &str) -> Result<(), NotAFileName> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let fits = (1..=MAX_FILE_NAME_CHARS).contains(&name.len()) && name.chars().all(plain);
    if fits && !name.starts_with('.') {
        return Ok(());
    }
    Err(NotAFileName(name.chars().take(MAX_FILE_NAME_CHARS).collect()))
}

/// The file called `name` directly in `folder`. Every path with a name from another process is
/// built here.
///
/// # Errors
/// The name is not a plain one.
pub fn file_in(folder: &Path, name: &str) -> Result<PathBuf, NotAFileName> {
    check(name)?;
    Ok(folder.join(name))
}

/// Whether a path stays within the folder that it starts in: relative, of plain components alone.
/// Links in the folder are not looked at.
#[must_use]
pub fn is_inner_path(path: &str) -> bool {
    let mut components = Path::new(path).components().peekable();
    !path.contains('\0')
        && path.len() <= MAX_PATH_BYTES
        && components.peek().is_some()
        && components.all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_never_leads_out_of_its_folder() {
        let folder = Path::new("/versions/v000001");
        for hostile in [
            "",
            ".",
            "..",
            "../x",
            "../../x",
            "a/../../b",
            "/etc/passwd",
            "a/b",
            "a\\b",
            "a\0b",
            ".hidden",
            "~",
            "a b",
            "a\nb",
            "ä",
            &"a".repeat(MAX_FILE_NAME_CHARS + 1),
        ] {
            assert!(file_in(folder, hostile).is_err(), "{hostile:?}");
        }
        for name in ["model.safetensors", "model-00001-of-00002.safetensors", "config.json", "a..b"] {
            assert_eq!(file_in(folder, name).unwrap(), folder.join(name));
        }
    }

    #[test]
    fn an_inner_path_stays_in_its_folder() {
        for hostile in ["", ".", "..", "/", "/etc/passwd", "../x", "a/../../b", "a/..", "a\0b", "./a"] {
            assert!(!is_inner_path(hostile), "{hostile:?}");
        }
        for path in ["a", "a/b", ".gitignore", "src/a b.py", "a..b/..c"] {
            assert!(is_inner_path(path), "{path:?}");
        }
    }
}
