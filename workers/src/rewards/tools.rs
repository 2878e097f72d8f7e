//! Tools of the rules: the sandbox and its Python, and the judge.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use millrace_sandbox::{End, Job, Limits, Run, Sandbox, SandboxError};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::RewardError;
use crate::policy::openai::http::Http;
use crate::runtime::wait_for_slot;

/// The program that runs untrusted code.
const SANDBOX: &str = "millrace-sandbox";
/// Silence of a server that streams; a judge does not stream.
const SILENCE: Duration = Duration::from_secs(300);

/// Options for the tools on this machine.
#[derive(Debug, Clone, Args)]
pub struct ToolArgs {
    /// The program that runs answers of the reward `code`. Default: `millrace-sandbox` beside this
    /// one
    #[arg(long = "sandbox", env = "MILLRACE_SANDBOX", value_name = "PATH")]
    sandbox: Option<PathBuf>,
    /// The Python that it runs them with
    #[arg(long = "sandbox-python", env = "MILLRACE_SANDBOX_PYTHON", value_name = "PATH", default_value = PYTHON)]
    python: String,
    /// Folders that answers may read besides those of the system: where that Python is, if not in
    /// /usr
    #[arg(
        id = "sandbox_read",
        long = "sandbox-read",
        env = "MILLRACE_SANDBOX_READ",
        value_name = "PATH",
        value_delimiter = ','
    )]
    read: Vec<PathBuf>,
    /// The server of the model that judges, for the reward `judge`: http://127.0.0.1:8000, without
    /// a path
    #[arg(long, env = "MILLRACE_JUDGE_URL", value_name = "URL")]
    judge_url: Option<String>,
    /// A file with the key that the server wants
    #[arg(long, env = "MILLRACE_JUDGE_KEY_FILE", value_name = "PATH")]
    judge_key_file: Option<PathBuf>,
    /// Requests that the judge has at once, from this worker
    #[arg(long, env = "MILLRACE_JUDGE_AT_ONCE", value_name = "N", default_value = "16")]
    judge_at_once: usize,
}

/// Where Python is on most systems.
const PYTHON: &str = "/usr/bin/python3";

/// The tools of all rules.
#[derive(Debug, Default)]
pub struct Tools {
    code: CodeTools,
    judge: JudgeTools,
}

/// What `judge` needs.
#[derive(Debug)]
pub struct JudgeTools {
    server: Option<Http>,
    at_once: Semaphore,
}

impl Default for JudgeTools {
    fn default() -> Self {
        Self { server: None, at_once: Semaphore::new(1) }
    }
}

impl JudgeTools {
    /// Sends a request and reads its reply as JSON. Waits until fewer than the allowed requests are
    /// in flight.
    ///
    /// # Errors
    /// There is no judge, or it does not succeed within the time.
    ///
    /// # Panics
    /// Never.
    pub async fn ask(&self, to: &str, body: &Value, within: Duration) -> Result<Value, RewardError> {
        let server = self.server.as_ref().ok_or(RewardError::NoJudge)?;
        let _turn = wait_for_slot(self.at_once.acquire()).await.expect("nobody closes the semaphore");
        Ok(server.ask(to, body, within).await?)
    }
}

/// What `code` needs.
#[derive(Debug)]
pub struct CodeTools {
    sandbox: Option<Sandbox>,
    python: String,
    read: Vec<PathBuf>,
}

impl Default for CodeTools {
    fn default() -> Self {
        Self { sandbox: None, python: PYTHON.to_owned(), read: Vec::new() }
    }
}

impl ToolArgs {
    /// The tools of the command line, and by default those beside this program. As many sandboxes
    /// run at once as there are processors.
    ///
    /// # Errors
    /// The key cannot be read.
    pub fn tools(&self) -> std::io::Result<Tools> {
        let beside = || {
            let own = std::env::current_exe().ok()?;
            own.ancestors().skip(1).take(2).map(|folder| folder.join(SANDBOX)).find(|path| path.is_file())
        };
        let at_once = std::thread::available_parallelism().map_or(1, usize::from);
        let program = self.sandbox.clone().or_else(beside);
        let sandbox = program.map(|program| Sandbox::at(program, at_once));
        let key = self.judge_key_file.as_ref().map(std::fs::read_to_string).transpose()?;
        let key = key.map(|key| key.trim().to_owned());
        let server = self.judge_url.as_ref().map(|url| Http::new(url.trim_end_matches('/'), key, SILENCE));
        let at_once = Semaphore::new(self.judge_at_once.max(1));
        let judge = JudgeTools { server, at_once };
        Ok(Tools { code: CodeTools { sandbox, python: self.python.clone(), read: self.read.clone() }, judge })
    }
}

impl Tools {
    /// What `code` needs.
    #[must_use]
    pub const fn code(&self) -> &CodeTools {
        &self.code
    }

    /// What `judge` needs.
    #[must_use]
    pub const fn judge(&self) -> &JudgeTools {
        &self.judge
    }
}

impl CodeTools {
    /// Where answers run.
    ///
    /// # Errors
    /// It is not there.
    pub fn sandbox(&self) -> Result<&Sandbox, SandboxError> {
        self.sandbox.as_ref().ok_or_else(|| SandboxError::Start {
            program: SANDBOX.into(),
            reason: "it is not beside this program; name it by --sandbox".to_owned(),
        })
    }

    /// The Python that runs them.
    #[must_use]
    pub fn python(&self) -> &str {
        &self.python
    }

    /// Folders that they may read besides the system's.
    #[must_use]
    pub fn read(&self) -> &[PathBuf] {
        &self.read
    }

    /// Whether an answer can run here, with all walls.
    ///
    /// # Errors
    /// What is missing, and how to get it.
    pub async fn probe(&self) -> Result<(), SandboxError> {
        let command = [self.python(), "-s", "-B", "-c", "pass"].map(str::to_owned).to_vec();
        let run = Run { command, stdin: String::new() };
        let (limits, read) = (Limits { wall_ms: 60_000, ..Limits::default() }, self.read.clone());
        let job = Job { files: Vec::new(), runs: vec![run], limits, read, may_lack: Vec::new() };
        let results = self.sandbox()?.run(&job, |_, _| true).await?;
        match results.runs.first() {
            Some(ran) if ran.end == End::Exit(0) => Ok(()),
            ran => Err(SandboxError::Refused(format!("{} does nothing in it: {ran:?}", self.python))),
        }
    }

    /// Where the program is, if it is anywhere.
    #[must_use]
    pub fn program(&self) -> Option<&Path> {
        self.sandbox.as_ref().map(Sandbox::program)
    }
}

#[cfg(test)]
mod tests {
    use millrace_schemas::env_step::{Speaker, Utterance};
    use millrace_schemas::reward::{RewardRule, RewardTask, TurnResult};
    use serde_json::json;
    use tokio::time::timeout;

    use super::*;
    use crate::rewards::score;
    use crate::runtime::within;

    const LIMIT: Duration = Duration::from_secs(120);

    /// Scores where all slots are taken.
    async fn waits(rule: RewardRule, settings: Value, tools: &Tools) {
        let turns = vec![TurnResult { reward: 0.0, valid: true, tokens: 1 }];
        let said = |speaker, text: &str| Utterance { speaker, text: text.to_owned() };
        let task = RewardTask {
            settings: serde_json::from_value(settings).expect("settings"),
            conversation: vec![
                said(Speaker::Environment, "Now?"),
                said(Speaker::Policy, "```python\nprint(1)\n```"),
            ],
            ..RewardTask::new(rule, turns, false)
        };
        let scored = timeout(LIMIT * 100, within(LIMIT, score(&task, tools))).await;
        assert!(scored.is_err(), "{rule:?} still waits, and its attempt is not over: {scored:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn rewards_that_wait_for_a_slot_use_up_no_time() {
        let code = CodeTools { sandbox: Some(Sandbox::at("/no/such/program", 1)), ..CodeTools::default() };
        let server = Some(Http::new("http://127.0.0.1:1", None, SILENCE));
        let tools = Tools { code, judge: JudgeTools { server, at_once: Semaphore::new(1) } };
        let _sandbox = tools.code.sandbox().expect("there is one").slot().await;
        let _judge = tools.judge.at_once.acquire().await.expect("nobody closes the semaphore");
        waits(RewardRule::Code, json!({ "tests": [{ "stdin": "", "stdout": "1" }] }), &tools).await;
        let judge = json!({ "model": "m", "template": "{answer}? Score:", "score_after": "Score:" });
        waits(RewardRule::Judge, judge, &tools).await;
    }
}
