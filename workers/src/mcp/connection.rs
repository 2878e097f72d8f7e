//! One running process of a server: requests go out and answers come in, in any order.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::line;
use super::message::{self, Incoming, Reply};
use crate::process_group::ProcessGroup;

/// Messages that wait for the server to read them.
const OUTGOING: usize = 256;
/// Bytes that are read at once.
const READ_BYTES: usize = 64 * 1024;
/// Lines of garbage of one process that the log shows.
const SHOWN_GARBAGE: u64 = 5;
/// Variables of the worker's environment that a server gets, as other clients of MCP pass them. The
/// worker's keys are not among them.
const VARIABLES: [&str; 10] =
    ["HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"];

/// The process ended, or closed its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended;

/// A process.
#[derive(Debug)]
pub(super) struct Connection {
    _group: ProcessGroup,
    shared: Arc<ConnectionInner>,
    /// What reads and writes; ended on drop.
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct ConnectionInner {
    server: String,
    outgoing: mpsc::Sender<Vec<u8>>,
    /// Requests without an answer by id; `None` once the process has ended.
    waiting: Mutex<Option<HashMap<u64, oneshot::Sender<Reply>>>>,
    next_id: AtomicU64,
    /// The server's list of tools is another one since it was read.
    is_changed: AtomicBool,
}

impl Connection {
    /// Starts `command` with the shell, in an environment of [`VARIABLES`] alone.
    ///
    /// # Errors
    /// The system does not start it.
    pub(super) fn start(server: &str, command: &str) -> Result<Self, String> {
        let variables = VARIABLES.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        // `env` takes `KEY=value` before the program.
        let line = format!("exec env {command}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &line]).env_clear().envs(variables);
        let (group, input, output) = ProcessGroup::start(&mut shell).map_err(|error| error.to_string())?;
        let (outgoing, messages) = mpsc::channel(OUTGOING);
        let shared = Arc::new(ConnectionInner {
            server: server.to_owned(),
            outgoing,
            waiting: Mutex::new(Some(HashMap::new())),
            next_id: AtomicU64::new(1),
            is_changed: AtomicBool::new(false),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(shared.clone().write(input, messages));
        tasks.spawn(shared.clone().read(output));
        Ok(Self { _group: group, shared, _tasks: tasks })
    }

    /// Whether it may still answer.
    pub(super) fn is_alive(&self) -> bool {
        self.shared.waiting().is_some()
    }

    /// Ends it for those who wait for answers; the last of them kills it.
    pub(super) fn end(&self) {
        self.shared.end();
    }

    /// Whether its list of tools changed since the last call of this.
    pub(super) fn take_changed(&self) -> bool {
        self.shared.is_changed.swap(false, Ordering::AcqRel)
    }

    /// Sends a request and waits for its answer; `None` if there is none within the time. Then, and
    /// when the future is dropped, a late answer is ignored.
    pub(super) async fn ask(
        &self,
        method: &str,
        params: &Value,
        within: Duration,
    ) -> Result<Option<Reply>, Ended> {
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        self.shared.waiting().as_mut().ok_or(Ended)?.insert(id, answer);
        let _waiting = Waiting { shared: &self.shared, id };
        let asked = async {
            self.shared.outgoing.send(message::request(id, method, params)).await.map_err(|_| Ended)?;
            answered.await.map_err(|_| Ended)
        };
        match timeout(within, asked).await {
            Ok(reply) => reply.map(Some),
            Err(_) => {
                let params = json!({ "requestId": id, "reason": "it took too long" });
                self.notify("notifications/cancelled", &params);
                Ok(None)
            }
        }
    }

    /// Sends a notification, unless the server reads nothing.
    pub(super) fn notify(&self, method: &str, params: &Value) {
        // A server that does not read learns nothing from one message more.
        let _ = self.shared.outgoing.try_send(message::notification(method, params));
    }
}

/// Withdraws a request when it is dropped.
struct Waiting<'a> {
    shared: &'a ConnectionInner,
    id: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.shared.waiting().as_mut() {
            waiting.remove(&self.id);
        }
    }
}

impl ConnectionInner {
    fn waiting(&self) -> MutexGuard<'_, Option<HashMap<u64, oneshot::Sender<Reply>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those who wait learn that nothing comes.
    fn end(&self) {
        self.waiting().take();
    }

    /// Consumes messages, produces the server's input. Waits for messages and for the server to read;
    /// ends when it reads no more.
    async fn write(self: Arc<Self>, mut input: ChildStdin, mut messages: mpsc::Receiver<Vec<u8>>) {
        while let Some(message) = messages.recv().await {
            if input.write_all(&message).await.is_err() || input.flush().await.is_err() {
                break;
            }
        }
        self.end();
    }

    /// Consumes the server's output, produces answers. Waits for output alone, so that a server that
    /// does not read cannot stop it. Ends with the output.
    async fn read(self: Arc<Self>, output: ChildStdout) {
        let (mut output, mut garbage) = (BufReader::with_capacity(READ_BYTES, output), 0_u64);
        while let Ok(Some(line)) = line::next(&mut output).await {
            match Incoming::read(&line) {
                Incoming::Response(id, reply) => {
                    let asked = self.waiting().as_mut().and_then(|waiting| waiting.remove(&id));
                    match asked {
                        // Nobody may wait for it any more.
                        Some(asked) => drop(asked.send(reply)),
                        None => tracing::debug!(server = self.server, id, "an answer that nobody waits for"),
                    }
                }
                Incoming::Request(id, method) => {
                    let _ = self.outgoing.try_send(message::answer(&id, &method));
                }
                Incoming::Notification(method) => {
                    if method == "notifications/tools/list_changed" {
                        self.is_changed.store(true, Ordering::Release);
                    }
                }
                Incoming::Garbage(reason) => {
                    garbage += 1;
                    if garbage <= SHOWN_GARBAGE {
                        let server = &self.server;
                        tracing::warn!(
                            server,
                            reason,
                            "an MCP server printed what is no message; it must print to the standard error instead"
                        );
                    }
                }
            }
        }
        self.end();
    }
}
