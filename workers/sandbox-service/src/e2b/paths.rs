//! Paths as E2B's daemon takes them: from the home folder, unless they begin with `/`.

/// The home folder.
const HOME: &str = "/home/user";

/// A path from `/`, without `.`, `..` and empty parts. What would lead above `/` is `/`.
pub(super) fn absolute(path: &str) -> String {
    let whole = if path == "~" {
        HOME.to_owned()
    } else if let Some(rest) = path.strip_prefix("~/") {
        format!("{HOME}/{rest}")
    } else if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("{HOME}/{path}")
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in whole.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// A path of something in a folder.
pub(super) fn within(folder: &str, name: &str) -> String {
    format!("{}/{name}", folder.trim_end_matches('/'))
}

/// The folder of a path.
pub(super) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("/", |(folder, _)| if folder.is_empty() { "/" } else { folder })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_no_further_than_the_root() {
        for (path, whole) in [
            ("a.txt", "/home/user/a.txt"),
            ("", "/home/user"),
            ("~", "/home/user"),
            ("~/a", "/home/user/a"),
            ("~a", "/home/user/~a"),
            ("/tmp//a/./b/", "/tmp/a/b"),
            ("../../../../etc/passwd", "/etc/passwd"),
            ("/..", "/"),
        ] {
            assert_eq!(absolute(path), whole, "{path}");
        }
        assert_eq!((within("/", "a"), within("/a", "b")), ("/a".to_owned(), "/a/b".to_owned()));
        assert_eq!((parent("/"), parent("/a"), parent("/a/b")), ("/", "/", "/a"));
    }
}
