//! The first process of a long-lived sandbox: puts up the last walls, for itself and all that it
//! starts, then does what the owner asks. It reaps what nobody waits for. When it ends, and it ends
//! with the owner's connection, the kernel kills all that is left.
//!
//! The loop consumes the owner's frames and never waits for a command: each has a task of its own.
//! What they say goes through one bounded queue to the owner, which always reads; a command whose
//! words the owner does not take waits with its pipe full, and no other does.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as Connection;
use std::rc::Rc;

use anyhow::Context;
use millrace_sandbox::End;
use millrace_sandbox::live::wire::{self, Build, FileAsk, FromInit, ToInit};
use millrace_sandbox::live::{Fault, Wall};
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;

use super::{command, files, forward, house, tree};
use crate::inside::{fence, filter};

/// Messages to the owner that wait to be written.
const QUEUE: usize = 64;
/// This process, which counts as well.
const OWN_PROCESSES: u64 = 1;

/// What all tasks share.
pub(crate) struct Tend {
    pub(crate) build: Build,
    pub(crate) has_proc: bool,
    pub(crate) say: mpsc::Sender<FromInit>,
    /// The supervisors of commands, with who waits for each.
    ending: RefCell<BTreeMap<i32, oneshot::Sender<WaitStatus>>>,
    /// Running commands, with the way to each.
    commands: RefCell<BTreeMap<u64, command::Way>>,
    /// Processes that commands left in the background when they ended.
    background: RefCell<BTreeSet<i32>>,
    /// While files stand still: what was asked since, in its order.
    held: RefCell<Option<Vec<ToInit>>>,
}

/// The connection to the owner, which is the standard input.
///
/// # Errors
/// It is not there.
pub(crate) fn owner() -> anyhow::Result<Connection> {
    Ok(Connection::from(std::io::stdin().as_fd().try_clone_to_owned()?))
}

/// Tends a sandbox. `words` names walls that are missing already.
///
/// # Errors
/// A wall does not stand that is asked for.
pub(crate) fn run(words: &[String]) -> anyhow::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL).context("failed to bind this life to its parent's")?;
    let mut owner = owner()?;
    let build: Build = wire::read(&mut owner)?;
    let done = walls(&build, words).and_then(|lacks| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let has_proc = !lacks.contains(&Wall::Proc);
        LocalSet::new().block_on(&runtime, tend(build, has_proc, lacks))
    });
    if let Err(error) = &done {
        let _ = wire::write(&mut owner, &FromInit::Failed(format!("{error:#}")));
    }
    done
}

/// Puts up what is left of the walls; returns what is missing.
fn walls(build: &Build, words: &[String]) -> anyhow::Result<Vec<Wall>> {
    prctl::set_no_new_privs().context("failed to refuse new rights")?;
    // Programs within have the same user: none may look into this process.
    prctl::set_dumpable(false).context("failed to close this process to others")?;
    bound(build).context("failed to set limits")?;
    let mut lacks: Vec<Wall> = words.iter().filter(|word| *word == "proc").map(|_| Wall::Proc).collect();
    for (wall, stands) in
        [(Wall::Landlock, fence::put_up_around_root()), (Wall::Seccomp, filter::put_up_for_long())]
    {
        if let Err(error) = stands {
            house::lack(build, wall, &error)?;
            lacks.push(wall);
        }
    }
    Ok(lacks)
}

fn bound(build: &Build) -> nix::Result<()> {
    let bounds = &build.spec.bounds;
    let processes = bounds.processes + OWN_PROCESSES;
    for (resource, most) in [
        (Resource::RLIMIT_FSIZE, bounds.disk_bytes),
        (Resource::RLIMIT_NPROC, processes),
        (Resource::RLIMIT_NOFILE, bounds.open_files),
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_MEMLOCK, 0),
        (Resource::RLIMIT_MSGQUEUE, 0),
    ] {
        setrlimit(resource, most, most)?;
    }
    Ok(())
}

async fn tend(build: Build, has_proc: bool, lacks: Vec<Wall>) -> anyhow::Result<()> {
    let owner = owner()?;
    owner.set_nonblocking(true)?;
    let (mut from, to) = UnixStream::from_std(owner)?.into_split();
    let (say, said) = mpsc::channel(QUEUE);
    let mut children = signal(SignalKind::child())?;
    for forward in &build.spec.forward {
        forward::listen(forward.port)
            .await
            .with_context(|| format!("failed to listen on {}", forward.port))?;
    }
    let writer = tokio::task::spawn_local(write(said, to));
    say.send(FromInit::Ready { lacks }).await?;
    let tend = Rc::new(Tend {
        build,
        has_proc,
        say,
        ending: RefCell::default(),
        commands: RefCell::default(),
        background: RefCell::default(),
        held: RefCell::default(),
    });
    let reaping = Rc::clone(&tend);
    let reaper = tokio::task::spawn_local(async move {
        while children.recv().await.is_some() {
            reaping.reap();
        }
    });
    // Ends with the connection.
    while let Ok(asked) = wire::receive(&mut from).await {
        Tend::take(&tend, asked).await;
    }
    reaper.abort();
    writer.abort();
    Ok(())
}

/// Tells the owner, until the connection ends. An answer that is too long becomes a fault: the owner would end
/// the connection at it.
async fn write(mut said: mpsc::Receiver<FromInit>, mut to: OwnedWriteHalf) {
    while let Some(message) = said.recv().await {
        let frame = match (wire::encode(&message), &message) {
            (Err(error), FromInit::File { id, .. }) => wire::encode(&unanswered(*id, &error)),
            (frame, _) => frame,
        };
        let Ok(frame) = frame else { return };
        if to.write_all(&frame).await.is_err() {
            return;
        }
    }
}

fn unanswered(id: u64, error: &std::io::Error) -> FromInit {
    let (what, path, reason) = ("answer for".to_owned(), String::new(), error.to_string());
    FromInit::File { id, answer: Err(Fault { what, path, reason, missing: false }) }
}

impl Tend {
    async fn take(tend: &Rc<Self>, asked: ToInit) {
        let Some(asked) = tend.hold(asked) else { return };
        match asked {
            ToInit::Start { id, exec } => {
                let (way, asked) = command::Way::new();
                tend.commands.borrow_mut().insert(id, way);
                tokio::task::spawn_local(command::run(Rc::clone(tend), id, exec, asked));
            }
            ToInit::Input { id, bytes } => {
                if let Some(way) = tend.commands.borrow().get(&id) {
                    way.input(bytes);
                }
            }
            ToInit::Resize { id, size } => {
                if let Some(way) = tend.commands.borrow().get(&id) {
                    way.resize(size);
                }
            }
            ToInit::Kill { id } => tend.end(id, End::Signal(Signal::SIGKILL as i32)),
            ToInit::Signal { id, signal } => {
                if let Some(way) = tend.commands.borrow().get(&id) {
                    way.signal(signal);
                }
            }
            ToInit::KillAll { end } => tend.kill_all(end),
            ToInit::File { id, ask } => {
                let held = match ask {
                    FileAsk::Thaw => tend.thaw(),
                    _ => Vec::new(),
                };
                if ask == FileAsk::Freeze {
                    tend.freeze();
                }
                let answer = files::answer(&ask);
                let _ = tend.say.send(FromInit::File { id, answer }).await;
                for asked in held {
                    Box::pin(Self::take(tend, asked)).await;
                }
            }
        }
    }

    /// Keeps back what may change a file while files stand still, another `Freeze` too.
    fn hold(&self, asked: ToInit) -> Option<ToInit> {
        let may_change = match &asked {
            ToInit::Start { .. } => true,
            ToInit::File { ask, .. } => *ask != FileAsk::Thaw,
            _ => false,
        };
        match &mut *self.held.borrow_mut() {
            Some(held) if may_change => {
                held.push(asked);
                None
            }
            _ => Some(asked),
        }
    }

    /// Stops every process but this one.
    fn freeze(&self) {
        *self.held.borrow_mut() = Some(Vec::new());
        let _ = kill(Pid::from_raw(-1), Signal::SIGSTOP);
        if self.has_proc {
            tree::wait_for_stop_of_all_below(std::process::id().cast_signed());
        }
    }

    /// Lets every process go on; returns what is to be done now.
    fn thaw(&self) -> Vec<ToInit> {
        let _ = kill(Pid::from_raw(-1), Signal::SIGCONT);
        self.held.borrow_mut().take().unwrap_or_default()
    }

    fn end(&self, id: u64, end: End) {
        if let Some(way) = self.commands.borrow().get(&id) {
            way.end(end);
        }
    }

    /// Kills every process but this one. Commands end with `end`, and are told so when the memory of
    /// what was killed is free: until then a command that follows would be taken for the one that had it.
    pub(crate) fn kill_all(&self, end: End) {
        self.commands.borrow().values().for_each(|way| way.end(end));
        let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
        if self.has_proc {
            tree::wait_for_end_of_all_below(std::process::id().cast_signed());
        }
    }

    /// Tells who waits for `pid` of its end.
    pub(crate) fn ending_of(&self, pid: i32) -> oneshot::Receiver<WaitStatus> {
        let (tell, told) = oneshot::channel();
        self.ending.borrow_mut().insert(pid, tell);
        told
    }

    /// A command is over: what it left behind is in the background from now on.
    pub(crate) fn forget(&self, id: u64) {
        self.commands.borrow_mut().remove(&id);
        if self.has_proc {
            *self.background.borrow_mut() = self.strays(&BTreeSet::new());
        }
    }

    /// Children of this process that are no supervisors, but for those of `known`.
    fn strays(&self, known: &BTreeSet<i32>) -> BTreeSet<i32> {
        let supervisors = self.ending.borrow();
        let children = tree::children(std::process::id().cast_signed());
        children.into_iter().filter(|pid| !supervisors.contains_key(pid) && !known.contains(pid)).collect()
    }

    /// Kills all that came of the supervisor `pid`, and what came here meanwhile: a process whose
    /// parents end becomes ours.
    pub(crate) fn kill_tree(&self, pid: i32) {
        if !self.has_proc || !tree::kill_all_of(pid) {
            self.kill_all(End::Wall);
            return;
        }
        self.kill_strays();
    }

    /// Kills what came here from a command that is killed.
    pub(crate) fn kill_strays(&self) {
        if !self.has_proc {
            return;
        }
        for stray in self.strays(&self.background.borrow()) {
            if !tree::kill_all_of(stray) {
                self.kill_all(End::Wall);
            }
        }
    }

    fn reap(&self) {
        loop {
            match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return,
                Err(Errno::EINTR) => {}
                Err(_) => return,
                Ok(status) => {
                    let pid = status.pid().map_or(0, Pid::as_raw);
                    if let Some(tell) = self.ending.borrow_mut().remove(&pid) {
                        let _ = tell.send(status);
                    }
                }
            }
        }
    }
}
