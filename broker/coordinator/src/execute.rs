//! Commands are done, in order, tasks many at a time. Each may be done again without harm, so a failure is
//! tried again until it works or another coordinator acts.

use std::time::Duration;

use millrace_queue::{Broker, BrokerError};
use millrace_schemas::Task;
use millrace_schemas::limits::MAX_COMMANDS_IN_FLIGHT;
use millrace_schemas::notice::Notice;
use millrace_schemas::subjects;
use tokio::sync::mpsc;

use crate::adopt;
use crate::command::{Command, Commands};
use crate::leader::Term;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Does commands until the sender is gone. Those that `term` has run out for are left: another coordinator does
/// them, or this one when its term begins anew, for then everything outstanding is commanded again.
///
/// Consumes: commands from the fold. Produces: tasks, blobs, keys, purges, notices. Waits for: the queue's
/// and the object store's answers. Unblocked by: the end of the fold, or of the term. On failure: tries again,
/// until the term is over.
pub async fn run(broker: Broker, mut commands: mpsc::Receiver<Commands>, term: Term) {
    let mut tasks = Vec::new();
    while let Some(mut batch) = commands.recv().await {
        // Whatever waits by now goes along.
        while batch.len() < MAX_COMMANDS_IN_FLIGHT
            && let Ok(more) = commands.try_recv()
        {
            batch.extend(more);
        }
        for command in batch {
            if let Command::PutTask(task) = command {
                tasks.push(*task);
                if tasks.len() < MAX_COMMANDS_IN_FLIGHT {
                    continue;
                }
                put_tasks(&broker, &mut tasks, &term).await;
            } else {
                put_tasks(&broker, &mut tasks, &term).await;
                let mut pause = FIRST_PAUSE;
                while term.holds()
                    && let Err(error) = obey(&broker, &command).await
                {
                    wait(&mut pause, &error).await;
                }
            }
        }
        put_tasks(&broker, &mut tasks, &term).await;
    }
}

async fn put_tasks(broker: &Broker, tasks: &mut Vec<Task>, term: &Term) {
    let mut pause = FIRST_PAUSE;
    while !tasks.is_empty() {
        if !term.holds() {
            tasks.clear();
            return;
        }
        let results = broker.put_tasks(tasks).await;
        let mut worst = None;
        let mut results = results.into_iter();
        tasks.retain(|_| match results.next() {
            Some(Ok(_)) => false,
            Some(Err(error)) => {
                worst = Some(error);
                true
            }
            None => true,
        });
        if let Some(error) = worst {
            wait(&mut pause, &error).await;
        }
    }
}

async fn wait(pause: &mut Duration, error: &BrokerError) {
    metrics::counter!("millrace_command_failures_total").increment(1);
    if *pause >= LONGEST_PAUSE || !error.is_transient() {
        tracing::error!(%error, "a command failed; trying again");
    } else {
        tracing::warn!(%error, "a command failed; trying again");
    }
    tokio::time::sleep(*pause).await;
    *pause = (*pause * 2).min(LONGEST_PAUSE);
}

async fn obey(broker: &Broker, command: &Command) -> Result<(), BrokerError> {
    match command {
        Command::EnsurePools(pools) => {
            for (stage, pool) in pools {
                broker.queue().ensure_pool(*stage, pool).await?;
            }
        }
        Command::RemovePools(pools) => {
            for (stage, pool) in pools {
                broker.queue().remove_pool(*stage, pool).await?;
            }
        }
        Command::EnsurePartitions(stage, pools) => {
            for pool in pools {
                broker.queue().ensure_partition(*stage, pool).await?;
            }
        }
        Command::PutBlob { run, content } => {
            broker.objects().put_blob(run, content.clone()).await?;
        }
        Command::PutTask(task) => {
            if let Some(Err(error)) = broker.put_tasks(std::slice::from_ref(&**task)).await.pop() {
                return Err(error);
            }
        }
        Command::Purge { stage, filter } => {
            broker.queue().purge(*stage, filter).await?;
        }
        Command::Adopt { run, version } => adopt::standing(broker, run, *version).await?,
        Command::SetPolicy { run, policy } => broker.set_policy(run, policy).await?,
        Command::Notice(notice) => tell(broker, notice).await,
    }
    Ok(())
}

pub(crate) async fn tell(broker: &Broker, notice: &Notice) {
    let kind = notice.kind();
    let subject = notice.run().map_or_else(|| subjects::notice_all(kind), |run| subjects::notice(run, kind));
    broker.notice(subject, notice).await;
}
