//! Tools of MCP servers, which the worker's operator provides as programs beside the worker: `--mcp
//! NAME=COMMAND`. The protocol is MCP 2025-06-18 over standard input and output, a line of JSON-RPC
//! each way. All rollouts of the worker share one process of a server, and a later turn may be on
//! another worker: a tool must not depend on earlier calls.
//!
//! The client is ours because of what a hostile server may do: the official `rmcp` reads lines of any
//! length, and restarts nothing.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use millrace_schemas::dataset::{ToolRef, ToolRefError, is_server_name};
use serde_json::{Map, Value};

use crate::runtime::{Failure, Retry};

mod line;
mod message;
mod tool;
mod connection;
mod server;

use server::Server;
pub use tool::{Tool, ToolResult};

/// A value of `--mcp`: `NAME=COMMAND`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpArg {
    /// The name by which run files ask for the server.
    pub name: String,
    /// Its command line, for the shell. `KEY=value` before the program sets variables for it.
    pub command: String,
}

/// Why there is no tool, or no result of one. None of these is the policy's doing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum McpError {
    /// Not `NAME=COMMAND`.
    #[error("value={0:?} is not NAME=COMMAND; a name is 1 to 64 of a-z, 0-9, '-' and '_'")]
    Argument(String),
    /// Two servers of one name.
    #[error("two servers are named {0:?}; give one of them another name")]
    SameName(String),
    /// The worker has no such server.
    #[error(
        "environment.tools asks for the server {0:?}, which this worker lacks; start workers with --mcp {0}=COMMAND"
    )]
    NoServer(String),
    /// The server has no such tool.
    #[error(
        "environment.tools asks for {server}/{tool}, and the server's tools are: {has}; name one of them"
    )]
    NoTool {
        /// The server.
        server: String,
        /// What was asked for.
        tool: String,
        /// Names of the tools that it has.
        has: String,
    },
    /// Two tools of one name.
    #[error(
        "environment.tools has two tools named {tool:?}, of {first} and {second}; leave one out, by naming the others as server/tool"
    )]
    SameTool {
        /// The name.
        tool: String,
        /// A server that has it.
        first: String,
        /// Another.
        second: String,
    },
    /// The text names no tool.
    #[error("environment.tools {0}")]
    Ref(String),
    /// It does not start, or does not speak the protocol.
    #[error("failed to start the MCP server {server}: {reason}; its own output is in this worker's log")]
    Start {
        /// The server.
        server: String,
        /// What failed.
        reason: String,
    },
    /// It failed before and is not started again yet.
    #[error("the MCP server {server} is down: {reason}")]
    Down {
        /// The server.
        server: String,
        /// Why it is down.
        reason: String,
        /// Until it is started again.
        wait: Duration,
    },
    /// It ended during a call.
    #[error("the MCP server {0} ended during a call; its own output is in this worker's log")]
    Ended(String),
}

impl From<McpError> for Failure {
    fn from(error: McpError) -> Self {
        let reason = error.to_string();
        match error {
            McpError::NoServer(_) => Self::Retry(Retry::Elsewhere, reason),
            McpError::Start { .. } | McpError::Ended(_) => Self::Retry(Retry::Restart, reason),
            McpError::Down { wait, .. } => Self::Retry(Retry::After(wait), reason),
            McpError::Argument(_)
            | McpError::SameName(_)
            | McpError::NoTool { .. }
            | McpError::SameTool { .. }
            | McpError::Ref(_) => Self::Impossible(reason),
        }
    }
}

impl FromStr for McpArg {
    type Err = McpError;

    fn from_str(text: &str) -> Result<Self, McpError> {
        let fail = || McpError::Argument(text.to_owned());
        let (name, command) = text.split_once('=').ok_or_else(fail)?;
        let (name, command) = (name.trim(), command.trim());
        if !is_server_name(name) || command.is_empty() {
            return Err(fail());
        }
        Ok(Self { name: name.to_owned(), command: command.to_owned() })
    }
}

/// The servers of a worker, by name. They are killed on drop.
#[derive(Debug, Default)]
pub struct McpServers(BTreeMap<String, Arc<Server>>);

/// A tool that a run may call.
#[derive(Debug, Clone)]
pub struct Declared {
    server: Arc<Server>,
    tool: Arc<Tool>,
}

impl McpServers {
    /// Starts the servers, side by side, and reads their tools.
    ///
    /// # Errors
    /// Two have one name, or one does not start.
    pub async fn start(args: &[McpArg]) -> Result<Self, McpError> {
        let mut servers = BTreeMap::new();
        for McpArg { name, command } in args {
            let server = Arc::new(Server::new(name.clone(), command.clone()));
            if servers.insert(name.clone(), server).is_some() {
                return Err(McpError::SameName(name.clone()));
            }
        }
        try_join_all(servers.values().map(|server| server.tools())).await?;
        Ok(Self(servers))
    }

    /// Whether each server that `refs` name is here.
    #[must_use]
    pub fn has_all(&self, refs: &[String]) -> bool {
        let mut read = refs.iter().filter_map(|text| text.parse::<ToolRef>().ok());
        read.all(|of| self.0.contains_key(&of.server))
    }

    /// The tools that the `tools` of a run file name, in its order, of each server in the server's.
    ///
    /// # Errors
    /// A server or a tool does not exist, or a server does not run.
    pub async fn declared(&self, refs: &[String]) -> Result<Vec<Declared>, McpError> {
        let mut declared: Vec<Declared> = Vec::new();
        for text in refs {
            let of: ToolRef = text.parse().map_err(|error: ToolRefError| McpError::Ref(error.to_string()))?;
            let server = self.0.get(&of.server).ok_or_else(|| McpError::NoServer(of.server.clone()))?;
            let tools = server.tools().await?;
            let named = |tool: &&Arc<Tool>| of.tool.as_ref().is_none_or(|name| *name == tool.name);
            for tool in tools.iter().filter(named) {
                match declared.iter().find(|other| other.tool.name == tool.name) {
                    // The server is named as a whole, and a tool of it besides.
                    Some(other) if other.server.name() == server.name() => {}
                    Some(other) => return Err(same_tool(tool, other, server)),
                    None => declared.push(Declared { server: server.clone(), tool: tool.clone() }),
                }
            }
            if let Some(tool) = of.tool.filter(|name| declared.iter().all(|other| other.tool.name != *name)) {
                let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
                return Err(McpError::NoTool { server: of.server, tool, has: names.join(", ") });
            }
        }
        Ok(declared)
    }
}

/// Tools as the chat template takes them.
pub(crate) fn objects(declared: &[Declared]) -> Vec<Value> {
    declared.iter().map(|declared| declared.tool().object()).collect()
}

fn same_tool(tool: &Tool, other: &Declared, server: &Server) -> McpError {
    let (first, second) = (other.server.name().to_owned(), server.name().to_owned());
    McpError::SameTool { tool: tool.name.clone(), first, second }
}

impl Declared {
    /// The tool.
    #[must_use]
    pub fn tool(&self) -> &Tool {
        &self.tool
    }

    /// Calls it, for at most `within`.
    ///
    /// # Errors
    /// The server does not run. What is wrong with the call is in the result.
    pub async fn call(
        &self,
        arguments: &Map<String, Value>,
        within: Duration,
    ) -> Result<ToolResult, McpError> {
        self.server.call(&self.tool.name, arguments, within).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_given_by_name_and_command() {
        let read = |text: &str| text.parse::<McpArg>();
        let arg =
            |name: &str, command: &str| Ok(McpArg { name: name.to_owned(), command: command.to_owned() });
        assert_eq!(read("calc=KEY=1 python3 calc.py"), arg("calc", "KEY=1 python3 calc.py"));
        for wrong in ["", "calc", "calc=", "=x", "../calc=x", "Calc=x"] {
            assert_eq!(read(wrong), Err(McpError::Argument(wrong.to_owned())));
        }
    }
}
