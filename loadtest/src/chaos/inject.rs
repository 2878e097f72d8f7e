//! Makes the faults of a plan happen, each in a task of its own, and notes what was done.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::leader::Leader;
use super::plan::{Fault, Plan};
use super::proxy::Mode;
use super::role::Role;
use super::scenario::Kind;
use super::stack::{Member, SharedStack};

/// A fault that happened.
#[derive(Debug, Clone, Serialize)]
pub struct Injected {
    /// Seconds from the beginning to its own.
    pub at_s: f64,
    /// Seconds from the beginning to when it was lifted: the process runs again, the connection or disk is
    /// as before.
    pub until_s: f64,
    /// What.
    pub kind: Kind,
    /// To whom.
    pub role: Role,
    /// To which processes.
    pub names: Vec<String>,
}

/// What was done so far.
#[derive(Debug, Clone)]
pub struct Record {
    began: Instant,
    done: Arc<Mutex<Vec<Injected>>>,
}

impl Record {
    /// Nothing yet; time counts from `began`.
    #[must_use]
    pub fn new(began: Instant) -> Self {
        Self { began, done: Arc::default() }
    }

    /// All faults, in the order of their beginning.
    #[must_use]
    pub fn take(&self) -> Vec<Injected> {
        let mut done = std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner));
        done.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        done
    }

    fn note(&self, since: Instant, fault: &Fault, names: Vec<String>) {
        let at_s = (since - self.began).as_secs_f64();
        let until_s = self.began.elapsed().as_secs_f64();
        let injected = Injected { at_s, until_s, kind: fault.kind, role: fault.role, names };
        tracing::info!(
            at_s,
            until_s,
            kind = fault.kind.name(),
            role = fault.role.name(),
            names = ?injected.names,
            "fault"
        );
        self.done.lock().unwrap_or_else(PoisonError::into_inner).push(injected);
    }
}

/// Injects faults until `end`, then waits until all are lifted.
///
/// Consumes: the plan. Produces: faults, and the record of them. Waits for: the time of each. Ends at `end`.
/// On failure: a fault that cannot be done is left out of the record.
pub async fn run(stack: SharedStack, mut plan: Plan, record: Record, leader: Leader, end: Instant) {
    let mut tasks = JoinSet::new();
    let mut at = Instant::now();
    loop {
        let fault = plan.draw();
        at += fault.after;
        if at >= end {
            break;
        }
        sleep_until(at).await;
        tasks.spawn(inject(stack.clone(), fault, record.clone(), leader.clone(), end));
    }
    while tasks.join_next().await.is_some() {}
}

async fn inject(stack: SharedStack, fault: Fault, record: Record, leader: Leader, end: Instant) {
    match fault.kind {
        Kind::DiskFull => fill_disk(&stack, &fault, &record, end).await,
        Kind::KillLeader => {
            let Some(name) = leader.of_the_log().await else { return };
            let member: Vec<&Member> = stack.members.iter().filter(|m| m.process.name() == name).collect();
            strike(&member, &fault, &record, end).await;
        }
        Kind::KillRole | Kind::PauseRole => {
            let members: Vec<&Member> = stack.of(fault.role).collect();
            strike(&members, &fault, &record, end).await;
        }
        Kind::Kill | Kind::Pause | Kind::Cut | Kind::Delay | Kind::Blackhole => {
            let members: Vec<&Member> = stack.of(fault.role).collect();
            let member = members[(fault.which % members.len() as u64) as usize];
            strike(&[member], &fault, &record, end).await;
        }
    }
}

/// Does `fault` to `members` once none of them is under another of its sort, unless that is after `end`.
async fn strike(members: &[&Member], fault: &Fault, record: &Record, end: Instant) {
    let line = matches!(fault.kind, Kind::Cut | Kind::Delay | Kind::Blackhole);
    // All tasks lock them in the same order, which rules out a deadlock.
    let mut held = Vec::new();
    for member in members {
        let lock = if line { &member.line_busy } else { &member.busy };
        let Ok(guard) = timeout_at(end, lock.lock()).await else { return };
        held.push(guard);
        if !line {
            member.process.up().await;
        }
    }
    let since = Instant::now();
    match fault.kind {
        Kind::Kill | Kind::KillRole | Kind::KillLeader => {
            join_all(members.iter().map(|member| member.process.kill())).await;
            sleep(fault.lasts).await;
            members.iter().for_each(|member| member.process.start());
            join_all(members.iter().map(|member| member.process.up())).await;
        }
        Kind::Pause | Kind::PauseRole => {
            members.iter().for_each(|member| member.process.pause(true));
            sleep(fault.lasts).await;
            members.iter().for_each(|member| member.process.pause(false));
        }
        Kind::Cut => disturb(members, Mode::Cut, fault.lasts).await,
        Kind::Delay => disturb(members, Mode::Delay(fault.delay), fault.lasts).await,
        Kind::Blackhole => disturb(members, Mode::Blackhole, fault.lasts).await,
        Kind::DiskFull => unreachable!("a full disk strikes no process"),
    }
    let names = members.iter().map(|member| member.process.name().to_owned()).collect();
    record.note(since, fault, names);
}

async fn disturb(members: &[&Member], mode: Mode, lasts: Duration) {
    let set = |mode| members.iter().filter_map(|member| member.proxy.as_ref()).for_each(|p| p.set(mode));
    set(mode);
    sleep(lasts).await;
    set(Mode::Through);
}

async fn fill_disk(stack: &SharedStack, fault: &Fault, record: &Record, end: Instant) {
    let Some(disk) = &stack.disk else { return };
    let Ok(_guard) = timeout_at(end, stack.disk_busy.lock()).await else { return };
    let since = Instant::now();
    let filled = disk.fill().await;
    sleep(fault.lasts).await;
    let freed = disk.free();
    match filled.and(freed) {
        Ok(()) => record.note(since, fault, vec![fault.role.name().to_owned()]),
        Err(error) => tracing::error!(%error, "failed to fill the disk"),
    }
}
