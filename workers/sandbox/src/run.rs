//! The worker's side: starts `millrace-sandbox`, hands it a job, hears of each run, and watches how
//! much memory it takes.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, timeout_at};

use crate::groups::Group;
use crate::job::{End, Job, Limits, Line, Protection, Ran};
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

/// One of the jobs at once.
#[derive(Debug)]
pub struct SandboxSlot<'a> {
    sandbox: &'a Sandbox,
    _permit: SemaphorePermit<'a>,
}

impl SandboxSlot<'_> {
    /// Does a job. After each run `go_on` says whether the next is still of use. Dropping the future
    /// kills everything in the sandbox.
    ///
    /// # Errors
    /// There was no sandbox, which says nothing of the program. Whatever the program does is a
    /// result.
    ///
    /// # Panics
    /// Never: a job holds only what JSON can express.
    pub async fn run(
        self,
        job: &Job,
        go_on: impl FnMut(usize, &Ran) -> bool,
    ) -> Result<Results, SandboxError> {
        self.run_within(job, Duration::MAX, go_on).await
    }

    /// The same, in `within` for all runs together: the run that is at it then is killed, and those after it do not begin.
    ///
    /// # Errors
    /// As [`Self::run`].
    ///
    /// # Panics
    /// Never, as [`Self::run`].
    pub async fn run_within(
        self,
        job: &Job,
        within: Duration,
        go_on: impl FnMut(usize, &Ran) -> bool,
    ) -> Result<Results, SandboxError> {
        self.sandbox.run_all(job, within, go_on).await
    }
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

    /// Waits until one job less than the most is done.
    ///
    /// # Panics
    /// Never.
    pub async fn slot(&self) -> SandboxSlot<'_> {
        let permit = self.slots.acquire().await.expect("nobody closes the semaphore");
        SandboxSlot { sandbox: self, _permit: permit }
    }

    /// Does a job once there is a slot. See [`SandboxSlot::run`].
    ///
    /// # Errors
    /// There was no sandbox.
    pub async fn run(
        &self,
        job: &Job,
        go_on: impl FnMut(usize, &Ran) -> bool,
    ) -> Result<Results, SandboxError> {
        self.slot().await.run(job, go_on).await
    }

    async fn run_all(
        &self,
        job: &Job,
        within: Duration,
        mut go_on: impl FnMut(usize, &Ran) -> bool,
    ) -> Result<Results, SandboxError> {
        let began = Instant::now();
        let mut results = Results { runs: Vec::new(), lacks: Vec::new() };
        for (at, run) in job.runs.iter().enumerate() {
            let left = within.saturating_sub(began.elapsed());
            let left = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            if left == 0 {
                break;
            }
            let limits = Limits { wall_ms: job.limits.wall_ms.min(left), ..job.limits };
            let alone = Job { runs: vec![run.clone()], limits, ..job.clone() };
            let ran = self.run_alone(&alone, &mut results.lacks).await?;
            let more = go_on(at, &ran);
            results.runs.push(ran);
            if !more {
                break;
            }
        }
        Ok(results)
    }

    /// Does a job of one run in a sandbox of its own.
    async fn run_alone(&self, job: &Job, lacks: &mut Vec<Protection>) -> Result<Ran, SandboxError> {
        let (mut child, output, group) = self.start(job).await?;
        let mut lines = Lines {
            output,
            until: Instant::now() + Duration::from_millis(job.limits.wall_ms) + SLACK,
            most: job.limits.output_bytes * 6 + LINE_BYTES,
        };
        *lacks = match lines.next(&mut child, u64::MAX).await? {
            Line::Ready(lacks) => lacks,
            Line::Failed(reason) => return Err(SandboxError::Refused(reason)),
            Line::Started | Line::Ran(_) => return Err(Silence::Wrong.before_the_start()),
        };
        match lines.next(&mut child, u64::MAX).await? {
            Line::Started => {}
            Line::Failed(reason) => return Err(SandboxError::Refused(reason)),
            Line::Ready(_) | Line::Ran(_) => return Err(Silence::Wrong.before_the_start()),
        }
        let began = Instant::now();
        let last = lines.next(&mut child, job.limits.memory_bytes).await;
        let wall_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let kills = group.as_ref().map_or(0, Group::kills);
        Ok(match last {
            Ok(Line::Ran(ran)) if kills > 0 => Ran { end: End::Memory, ..ran },
            Err(_) if kills > 0 => Ran::cut_off(End::Memory, Silence::Memory.to_string(), wall_ms),
            Ok(Line::Ran(ran)) => ran,
            Ok(Line::Failed(reason)) => Ran::cut_off(End::Broke, reason, wall_ms),
            Ok(Line::Ready(_) | Line::Started) => Ran::cut_off(End::Broke, String::new(), wall_ms),
            Err(silence) => Ran::cut_off(silence.as_end(), silence.to_string(), wall_ms),
        })
    }

    async fn start(&self, job: &Job) -> Result<(Child, BufReader<ChildStdout>, Option<Group>), SandboxError> {
        let fail = |reason: String| SandboxError::Start { program: self.program.clone(), reason };
        let group = Self::group(job).map_err(|error| SandboxError::Refused(format!("its group: {error}")))?;
        let mut command = piped(&self.program);
        command.args(group.iter().flat_map(Group::words));
        let mut child = command.spawn().map_err(|error| fail(error.to_string()))?;
        let (Some(input), Some(output)) = (child.stdin.as_mut(), child.stdout.take()) else {
            return Err(fail("its input and output are not there".to_owned()));
        };
        let mut line = serde_json::to_vec(job).expect("a job holds only what JSON can express");
        line.push(b'\n');
        // Its input stays open as long as this worker lives: where it ends, so does the sandbox.
        if let Err(error) = input.write_all(&line).await {
            return Err(broken(&error.to_string()));
        }
        Ok((child, BufReader::new(output), group))
    }

    fn group(job: &Job) -> std::io::Result<Option<Group>> {
        let group = Group::make()?;
        let files = job.limits.disk_bytes.saturating_add(job.text_bytes());
        group.iter().try_for_each(|group| group.bound(job.limits.memory_bytes, files, true))?;
        Ok(group)
    }
}

/// `millrace-sandbox`, asked and answering by pipes. It has nothing of our environment, and ends with
/// the process that is made of it.
pub(crate) fn piped(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    command
}

fn broken(reason: &str) -> SandboxError {
    SandboxError::Broken(reason.to_owned())
}

/// Why there is no next line of a sandbox.
#[derive(Debug, thiserror::Error)]
enum Silence {
    #[error("it did not answer in time")]
    Late,
    #[error("it ended")]
    Ended,
    #[error("its answer is longer than what it may write")]
    Long,
    #[error("its processes have more than memory_bytes")]
    Memory,
    #[error("its answer is out of order")]
    Wrong,
    #[error("{0}")]
    Unreadable(String),
}

impl Silence {
    /// Nothing of the program ran yet: there was no sandbox.
    fn before_the_start(&self) -> SandboxError {
        broken(&self.to_string())
    }

    /// The program ran: it is what ended the sandbox.
    const fn as_end(&self) -> End {
        match self {
            Self::Late => End::Wall,
            Self::Long => End::Output,
            Self::Memory => End::Memory,
            Self::Ended | Self::Wrong | Self::Unreadable(_) => End::Broke,
        }
    }
}

impl From<Silence> for SandboxError {
    fn from(silence: Silence) -> Self {
        silence.before_the_start()
    }
}

/// Waits until a process and its descendants have more than `most` bytes, or too many mappings. For ever where
/// that is no bound.
async fn beyond(pid: Option<u32>, most: u64) {
    let Some(pid) = pid.filter(|_| most < u64::MAX) else { return std::future::pending().await };
    let mut looks = memory::looks(pid);
    while looks.next().await.is_within(most) {
        sleep(LOOK.max(looks.pause())).await;
    }
}

/// What a sandbox tells, line by line.
struct Lines {
    output: BufReader<ChildStdout>,
    until: Instant,
    /// Bytes of a line.
    most: u64,
}

impl Lines {
    /// The next line. The sandbox dies where its processes have more than `memory` bytes.
    async fn next(&mut self, child: &mut Child, memory: u64) -> Result<Line, Silence> {
        let mut line = Vec::new();
        let mut lines = (&mut self.output).take(self.most);
        let read = lines.read_until(b'\n', &mut line);
        tokio::select! {
            read = timeout_at(self.until, read) => match read {
                Err(_) => return Err(Silence::Late),
                Ok(Err(error)) => return Err(Silence::Unreadable(error.to_string())),
                Ok(Ok(_)) => {}
            },
            () = beyond(child.id(), memory) => {
                let _ = child.kill().await;
                return Err(Silence::Memory);
            }
        }
        match line.last() {
            Some(b'\n') => {
                serde_json::from_slice(&line).map_err(|error| Silence::Unreadable(error.to_string()))
            }
            Some(_) if line.len() as u64 >= self.most => Err(Silence::Long),
            Some(_) | None => Err(Silence::Ended),
        }
    }
}
