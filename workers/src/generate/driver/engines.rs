//! The engines of the thread, and the weights that are being read for them.

use std::collections::{BTreeMap, HashMap};

use millrace_policy::{LoadedVersion, PolicyError, ReadyWeights};
use millrace_schemas::RunId;
use tokio::sync::{mpsc, oneshot};

use super::host::{Host, contained};
use super::{Command, Loading, Read, Request};

/// Engines by their run.
pub(super) struct Engines {
    read: Read,
    /// Reader threads send [`Command::Ready`] by it.
    commands: mpsc::WeakUnboundedSender<Command>,
    hosts: HashMap<RunId, Host>,
    /// Reads that have not ended, by number: for which run, or `None` once it is forgotten.
    reads: BTreeMap<u64, Option<RunId>>,
    next_read: u64,
    /// The trainer that waits for the device; answered when no read is in flight.
    leaving: Option<oneshot::Sender<Result<(), PolicyError>>>,
    /// Versions to load when the device is free again; `None` while it is.
    postponed: Option<Vec<Command>>,
}

impl Engines {
    pub(super) fn new(read: Read, commands: mpsc::WeakUnboundedSender<Command>) -> Self {
        Self {
            read,
            commands,
            hosts: HashMap::new(),
            reads: BTreeMap::new(),
            next_read: 0,
            leaving: None,
            postponed: None,
        }
    }

    /// Whether no request is in flight.
    pub(super) fn are_idle(&self) -> bool {
        self.hosts.values().all(Host::is_idle)
    }

    /// One step of each engine that has requests.
    pub(super) fn step(&mut self) {
        self.hosts.retain(|run, host| host.is_idle() || host.step(run));
    }

    pub(super) fn apply(&mut self, command: Command) {
        if let (Command::Load(..), Some(postponed)) = (&command, &mut self.postponed) {
            postponed.push(command);
            return;
        }
        match command {
            Command::Load(weights, loading) => self.start_read(*weights, loading),
            Command::Ready(number, weights, loading) => {
                let run = self.reads.remove(&number).flatten();
                let forgotten = || PolicyError::Temporary("the run was forgotten meanwhile".to_owned());
                let answer = run.ok_or_else(forgotten).and_then(|run| self.serve(run, weights?, &loading));
                // The receiver may be gone.
                let _ = loading.reply.send(answer);
                self.leave_if_nothing_is_read();
            }
            Command::Request(run, request) => match self.hosts.get_mut(&run) {
                Some(host) if self.postponed.is_none() => host.admit(*request),
                Some(_) => refuse(*request, "a step has the device".to_owned()),
                None => refuse(*request, format!("no engine for run={run}")),
            },
            Command::Forget(run) => {
                self.hosts.remove(&run);
                let forgotten = self.reads.values_mut().filter(|of| of.as_ref() == Some(&run));
                forgotten.for_each(|of| *of = None);
            }
            Command::Leave(reply) => {
                self.postponed.get_or_insert_default();
                self.leaving = Some(reply);
                self.leave_if_nothing_is_read();
            }
            Command::ComeBack => {
                // The trainer that waited for the device gave up.
                self.leaving = None;
                self.postponed.take().into_iter().flatten().for_each(|command| self.apply(command));
            }
        }
    }

    /// Reads weights on a thread of their own, which answers with [`Command::Ready`].
    fn start_read(&mut self, weights: LoadedVersion, loading: Loading) {
        let (read, commands, number) = (self.read.clone(), self.commands.clone(), self.next_read);
        self.next_read += 1;
        self.reads.insert(number, Some(weights.manifest.run.clone()));
        let read = move || {
            let ready = contained(|| read(&weights));
            drop(weights);
            // A worker that ends drops them.
            if let Some(commands) = commands.upgrade() {
                let _ = commands.send(Command::Ready(number, ready, loading));
            }
        };
        // Without a thread the reply is dropped, and the version is asked for again.
        if let Err(error) = std::thread::Builder::new().name("weights".to_owned()).spawn(read) {
            tracing::error!(%error, "no thread to read weights on");
            self.reads.remove(&number);
        }
    }

    /// Has the run's engine swap to these weights, or makes it.
    fn serve(
        &mut self,
        run: RunId,
        weights: Box<dyn ReadyWeights>,
        loading: &Loading,
    ) -> Result<(), PolicyError> {
        let host = match self.hosts.remove(&run) {
            Some(host) => host.swap(weights),
            None => Host::start(weights, loading.serving.clone()),
        };
        self.hosts.insert(run, host?);
        Ok(())
    }

    fn leave_if_nothing_is_read(&mut self) {
        if !self.reads.is_empty() {
            return;
        }
        if let Some(reply) = self.leaving.take() {
            let left = self.hosts.values_mut().try_for_each(Host::leave_device);
            let _ = reply.send(left);
        }
    }
}

fn refuse(request: Request, why: String) {
    let _ = request.reply.send(Err(PolicyError::Temporary(why)));
}
