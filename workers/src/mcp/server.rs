//! A server that is kept running: started when it is needed, restarted with back-off after it ended,
//! and killed when it no longer answers.

use std::sync::Arc;
use std::time::Duration;

use millrace_schemas::text::cut;
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use super::McpError;
use super::connection::{Connection, Ended};
use super::message::Reply;
use super::tool::{Tool, ToolResult};

/// The version of the protocol that is asked for.
const PROTOCOL: &str = "2025-06-18";
/// Versions that a server may answer with: what is used here is the same in each.
const PROTOCOLS: [&str; 4] = ["2024-11-05", "2025-03-26", PROTOCOL, "2025-11-25"];
/// Time for the server to start, and for each page of its tools.
const HELLO: Duration = Duration::from_secs(60);
/// A server whose call took too long must answer a ping within this time, or is killed.
const PING: Duration = Duration::from_secs(5);
/// Tools of a server at most, and pages on which it lists them.
const MAX_TOOLS: usize = 1_024;
/// Bytes of the declarations of a server's tools at most.
const MAX_DECLARED: usize = 1024 * 1024;
/// Bytes of a declaration that an error shows.
const SHOWN: usize = 200;
/// Back-off after the second failure in a row, doubled with each further one. The first restart is at
/// once.
const BACK_OFF: Duration = Duration::from_millis(500);
/// The longest back-off.
const MAX_BACK_OFF: Duration = Duration::from_secs(30);
/// A shorter back-off is waited for, so that it costs a task none of its few deliveries.
const PATIENCE: Duration = Duration::from_secs(10);
/// A server that ran for so long has not failed in a row.
const STEADY: Duration = Duration::from_secs(60);

/// A server by its name.
#[derive(Debug)]
pub(super) struct Server {
    name: String,
    command: String,
    state: Mutex<ServerState>,
}

#[derive(Debug, Default)]
struct ServerState {
    running: Option<Arc<Running>>,
    /// When the last process was started.
    started: Option<Instant>,
    /// Failures in a row.
    failures: u32,
    /// Why the last one failed.
    reason: String,
    /// No process is started before.
    not_before: Option<Instant>,
}

#[derive(Debug)]
struct Running {
    connection: Connection,
    tools: std::sync::Mutex<Arc<[Arc<Tool>]>>,
}

impl Server {
    pub(super) fn new(name: String, command: String) -> Self {
        Self { name, command, state: Mutex::default() }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Its tools, in its own order.
    ///
    /// # Errors
    /// It does not run.
    pub(super) async fn tools(&self) -> Result<Arc<[Arc<Tool>]>, McpError> {
        let running = self.running().await?;
        let tools = running.tools.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(tools.clone())
    }

    /// Calls a tool, for at most `within`. What is wrong with the call is in the result.
    ///
    /// # Errors
    /// It does not run, or ended during the call.
    pub(super) async fn call(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        within: Duration,
    ) -> Result<ToolResult, McpError> {
        let running = self.running().await?;
        let params = json!({ "name": tool, "arguments": arguments });
        let since = Instant::now();
        let reply = running.connection.ask("tools/call", &params, within).await;
        let took = since.elapsed();
        let result = match reply {
            Ok(Some(Reply::Result(result))) => ToolResult::read(&result),
            Ok(Some(Reply::Error(reason))) => ToolResult::error(reason),
            Ok(Some(Reply::TooLong)) => ToolResult::error("the result is too long to be read"),
            Ok(None) => {
                self.count("late", took);
                self.check(&running).await;
                let said = format_args!("the call took longer than {} ms", within.as_millis());
                return Ok(ToolResult::error(said));
            }
            Err(Ended) => {
                self.count("server_ended", took);
                return Err(McpError::Ended(self.name.clone()));
            }
        };
        self.count(if result.is_error { "error" } else { "done" }, took);
        Ok(result)
    }

    /// Counts a call that ended so.
    fn count(&self, result: &'static str, took: Duration) {
        let server = || self.name.clone();
        metrics::counter!("millrace_tool_calls_total", "server" => server(), "result" => result).increment(1);
        metrics::counter!("millrace_tool_call_microseconds_total", "server" => server())
            .increment(took.as_micros() as u64);
    }

    /// Kills a server that does not answer a ping. Calls of others, whose time is not over, are then
    /// made again by the next process.
    async fn check(&self, running: &Arc<Running>) {
        if let Ok(None) = running.connection.ask("ping", &json!({}), PING).await {
            let mut state = self.state.lock().await;
            if state.running.as_ref().is_some_and(|current| Arc::ptr_eq(current, running)) {
                tracing::warn!(server = self.name, "an MCP server no longer answers, and is restarted");
                running.connection.end();
                state.failed("it no longer answered".to_owned());
            }
        }
    }

    /// The running process, started if there is none.
    async fn running(&self) -> Result<Arc<Running>, McpError> {
        let mut state = self.state.lock().await;
        if let Some(running) = &state.running {
            if running.connection.is_alive() {
                if running.connection.take_changed() {
                    let listed = list(&running.connection).await.map_err(|reason| self.unusable(reason))?;
                    *running.tools.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = listed;
                }
                return Ok(running.clone());
            }
            tracing::warn!(server = self.name, "an MCP server ended, and is restarted");
            state.failed("it ended".to_owned());
        }
        let wait =
            state.not_before.map(|at| at.saturating_duration_since(Instant::now())).unwrap_or_default();
        if wait > PATIENCE {
            return Err(McpError::Down { server: self.name.clone(), reason: state.reason.clone(), wait });
        }
        // All others wait for the same.
        sleep(wait).await;
        state.started = Some(Instant::now());
        match begin(&self.name, &self.command).await {
            Ok(running) => Ok(state.running.insert(Arc::new(running)).clone()),
            Err(reason) => {
                state.failed(reason.clone());
                Err(self.unusable(reason))
            }
        }
    }

    fn unusable(&self, reason: String) -> McpError {
        McpError::Start { server: self.name.clone(), reason }
    }
}

impl ServerState {
    /// The process is of no more use, and another one may start after the back-off.
    fn failed(&mut self, reason: String) {
        let ran = self.started.map_or(Duration::ZERO, |at| at.elapsed());
        self.failures = if ran >= STEADY { 1 } else { self.failures.saturating_add(1) };
        let wait = match self.failures {
            0 | 1 => Duration::ZERO,
            more => (BACK_OFF * 2_u32.saturating_pow(more - 2)).min(MAX_BACK_OFF),
        };
        (self.running, self.reason, self.not_before) = (None, reason, Some(Instant::now() + wait));
    }
}

/// Starts a process, agrees on the protocol, and reads its tools.
async fn begin(name: &str, command: &str) -> Result<Running, String> {
    let connection = Connection::start(name, command)?;
    let client = json!({ "name": "millrace-worker", "version": env!("CARGO_PKG_VERSION") });
    let hello = json!({ "protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client });
    let answer = result_of(&connection, "initialize", &hello).await?;
    let version = answer["protocolVersion"].as_str().unwrap_or_default();
    if !PROTOCOLS.contains(&version) {
        return Err(format!(
            "it speaks protocolVersion={version:?}, and this worker {}",
            PROTOCOLS.join(", ")
        ));
    }
    if !answer["capabilities"]["tools"].is_object() {
        return Err("it offers no tools".to_owned());
    }
    connection.notify("notifications/initialized", &json!({}));
    let tools = std::sync::Mutex::new(list(&connection).await?);
    Ok(Running { connection, tools })
}

/// Its tools, page by page.
async fn list(connection: &Connection) -> Result<Arc<[Arc<Tool>]>, String> {
    let (mut tools, mut bytes, mut params) = (Vec::<Arc<Tool>>::new(), 0, json!({}));
    for _ in 0..MAX_TOOLS {
        let page = result_of(connection, "tools/list", &params).await?;
        for entry in page["tools"].as_array().into_iter().flatten() {
            let entry_text = entry.to_string();
            bytes += entry_text.len();
            let Some(tool) = Tool::read(entry) else {
                let entry = cut(&entry_text, SHOWN);
                return Err(format!("a tool of it has no name, or no inputSchema: {entry}"));
            };
            if tools.iter().any(|other| other.name == tool.name) {
                return Err(format!("it has two tools named {:?}", tool.name));
            }
            tools.push(Arc::new(tool));
        }
        if tools.len() > MAX_TOOLS || bytes > MAX_DECLARED {
            return Err(format!("its tools are more than {MAX_TOOLS}, or {MAX_DECLARED} bytes"));
        }
        match page["nextCursor"].as_str() {
            Some(cursor) => params = json!({ "cursor": cursor }),
            None if tools.is_empty() => return Err("it has no tools".to_owned()),
            None => return Ok(tools.into()),
        }
    }
    Err(format!("its list of tools has more than {MAX_TOOLS} pages"))
}

async fn result_of(connection: &Connection, method: &str, params: &Value) -> Result<Value, String> {
    match connection.ask(method, params, HELLO).await {
        Ok(Some(Reply::Result(result))) => Ok(result),
        Ok(Some(Reply::Error(reason))) => Err(format!("it refused {method}: {reason}")),
        Ok(Some(Reply::TooLong)) => Err(format!("its answer to {method} is too long")),
        Ok(None) => Err(format!("it did not answer {method} within {} s", HELLO.as_secs())),
        Err(Ended) => Err(format!("it ended before it answered {method}")),
    }
}
