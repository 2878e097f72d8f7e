//! Which tools the policy may call: names of servers that the worker's operator provides.

use std::str::FromStr;

use crate::ids::is_name;

/// Bytes of a server's name at most.
const MAX_SERVER_BYTES: usize = 64;

/// A server of tools, all of them or one: `calculator`, `files/read_file`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolRef {
    /// The server's name: a-z, 0-9, `-` and `_`, 1 to 64 bytes.
    pub server: String,
    /// The tool as the server names it; `None` for all of the server's tools.
    pub tool: Option<String>,
}

/// The text names no server of tools.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "value={0:?} is neither a server nor server/tool; a server's name is 1 to {MAX_SERVER_BYTES} of a-z, 0-9, '-' and '_'"
)]
pub struct ToolRefError(pub String);

/// Whether a server of tools may have this name.
#[must_use]
pub fn is_server_name(name: &str) -> bool {
    is_name(name, MAX_SERVER_BYTES)
}

impl FromStr for ToolRef {
    type Err = ToolRefError;

    fn from_str(text: &str) -> Result<Self, ToolRefError> {
        // A tool's own name may have slashes; a server's has none.
        let (server, tool) = match text.split_once('/') {
            Some((server, tool)) => (server, Some(tool)),
            None => (text, None),
        };
        if !is_server_name(server) || tool.is_some_and(str::is_empty) {
            return Err(ToolRefError(text.to_owned()));
        }
        Ok(Self { server: server.to_owned(), tool: tool.map(str::to_owned) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_or_one_of_its_tools_is_named() {
        let read = |text: &str| text.parse::<ToolRef>();
        let of = |server: &str, tool: Option<&str>| {
            Ok(ToolRef { server: server.to_owned(), tool: tool.map(str::to_owned) })
        };
        assert_eq!(read("calculator"), of("calculator", None));
        assert_eq!(read("files/read_file"), of("files", Some("read_file")));
        assert_eq!(read("files/../x"), of("files", Some("../x")), "it is a name, and no path");
        for wrong in ["", "/", "files/", "/read", "Files", "../files", "a b", &"a".repeat(65)] {
            assert_eq!(read(wrong), Err(ToolRefError(wrong.to_owned())));
        }
    }
}
