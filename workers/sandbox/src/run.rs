//! The worker's side: starts `millrace-sandbox`, hands it a job, hears of each run, and watches how much memory it takes.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::Semaphore;
use tokio::time::{Instant, interval, timeout_at};

use crate::job::{End, Job, Line, Protection, Ran};
use crate::memory;

/// Between two looks at the memory of a sandbox.
const LOOK: Duration = Duration::from_millis(20);
/// What the sandbox may need besides its runs, before it is taken for broken.
const SLACK: Duration = Duration::from_secs(20);
/// Bytes of a line of it besides what a run wrote; JSON may write a byte as six.
const LINE_BYTES: u64 = 256 * 1024;

/// Why there was no sandbox. It says nothing of the program that was to run in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// `millrace-sandbox` does not start.
    #[error("failed to start {program:?}: {reason}; it belongs beside millrace-worker")]
    Start {
        /// Its path.
        program: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The machine lacks something.
    #[error("failed to set up a sandbox: {0}")]
    Refused(String),
    /// It ended, or went silent, in the middle.
    #[error("the sandbox ended without a result: {0}")]
    Broken(String),
}

/// The way to `millrace-sandbox`; so many at once.
#[derive(Debug)]
pub struct Sandbox {
    program: PathBuf,
    slots: Semaphore,
}

/// What came of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Results {
    /// The runs that ended, in order. `[R]`, at most as many as were asked for.
    pub runs: Vec<Ran>,
    /// The walls that were missing.
    pub lacks: Vec<Protection>,
}

impl Sandbox {
    /// The program at this path, at most `at_once` of it.
    #[must_use]
    pub fn at(program: impl Into<PathBuf>, at_once: usize) -> Self {
        Self { program: program.into(), slots: Semaphore::new(at_once.max(1)) }
    }

    /// Where the program is.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Does a job. After each run `go_on` says whether the next is still of use. Waits until there is room. Dropping the
    /// future kills everything in the sandbox.
    ///
    /// # Errors
    /// There was no sandbox, which says nothing of the program. Whatever the program does is a result.
    ///
    /// # Panics
    /// Never: a job holds only what JSON can express.
    pub async fn run(
        &self,
        job: &Job,
        mut go_on: impl FnMut(usize, &Ran) -> bool,
    ) -> Result<Results, SandboxError> {
        let _room = self.slots.acquire().await.expect("nobody closes the semaphore");
        let (mut child, mut output) = self.start(job).await?;
        let wall =
            Duration::from_millis(job.limits.wall_ms) * u32::try_from(job.runs.len()).unwrap_or(u32::MAX);
        let until = Instant::now() + wall + SLACK;
        let most = job.limits.output_bytes * 6 + LINE_BYTES;
        let lacks = match next(&mut child, &mut output, until, most, u64::MAX).await? {
            Some(Line::Ready(lacks)) => lacks,
            Some(Line::Failed(reason)) => return Err(SandboxError::Refused(reason)),
            Some(Line::Ran(_)) | None => return Err(broken("it did not say what stands")),
        };
        let mut runs = Vec::new();
        for at in 0..job.runs.len() {
            let began = Instant::now();
            let ran = match next(&mut child, &mut output, until, most, job.limits.memory_bytes).await? {
                Some(Line::Ran(ran)) => ran,
                Some(Line::Failed(reason)) => return Err(SandboxError::Refused(reason)),
                Some(Line::Ready(_)) => return Err(broken("it said twice what stands")),
                None => {
                    let wall_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                    let (stdout, stderr) = (String::new(), String::new());
                    runs.push(Ran { end: End::Memory, stdout, stderr, wall_ms, cpu_ms: 0 });
                    break;
                }
            };
            let more = go_on(at, &ran) && ran.end != End::Left;
            runs.push(ran);
            if !more {
                break;
            }
        }
        Ok(Results { runs, lacks })
    }

    async fn start(&self, job: &Job) -> Result<(Child, BufReader<ChildStdout>), SandboxError> {
        let fail = |reason: String| SandboxError::Start { program: self.program.clone(), reason };
        let mut child = Command::new(&self.program)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| fail(error.to_string()))?;
        let (Some(input), Some(output)) = (child.stdin.as_mut(), child.stdout.take()) else {
            return Err(fail("its input and output are not there".to_owned()));
        };
        let mut line = serde_json::to_vec(job).expect("a job holds only what JSON can express");
        line.push(b'\n');
        // Its input stays open as long as this worker lives: where it ends, so does the sandbox.
        if let Err(error) = input.write_all(&line).await {
            return Err(broken(&error.to_string()));
        }
        Ok((child, BufReader::new(output)))
    }
}

fn broken(reason: &str) -> SandboxError {
    SandboxError::Broken(reason.to_owned())
}

/// The sandbox's next line; `None` where its processes had more than `memory` bytes, and are dead.
async fn next(
    child: &mut Child,
    output: &mut BufReader<ChildStdout>,
    until: Instant,
    most: u64,
    memory: u64,
) -> Result<Option<Line>, SandboxError> {
    let mut line = Vec::new();
    let mut looks = interval(LOOK);
    let mut lines = output.take(most);
    let read = lines.read_until(b'\n', &mut line);
    tokio::pin!(read);
    loop {
        tokio::select! {
            read = timeout_at(until, &mut read) => {
                match read {
                    Err(_) => return Err(broken("no word of it in time")),
                    Ok(Err(error)) => return Err(broken(&error.to_string())),
                    Ok(Ok(_)) => break,
                }
            }
            _ = looks.tick() => {
                if child.id().is_some_and(|pid| memory::of_tree(pid) > memory) {
                    let _ = child.kill().await;
                    return Ok(None);
                }
            }
        }
    }
    if line.last() != Some(&b'\n') {
        return Err(broken("its words end in the middle"));
    }
    serde_json::from_slice(&line).map(Some).map_err(|error| broken(&error.to_string()))
}
