//! Every referenced object exists in the object store, before and after garbage collection.

use std::time::Duration;

use millrace_coordinator::State;
use millrace_coordinator::shell::collect::{Known, collect, damaged, survey};
use millrace_queue::Broker;

use super::history::{History, folded};
use super::record::read_log;

/// Of a store that is looked at whole.
#[derive(Debug, Clone, Default)]
pub struct ObjectsSeen {
    /// What was wrong.
    pub wrong: Vec<String>,
    /// How many nothing led to.
    pub collected: u64,
}

/// Reads every referenced object, and removes nothing.
///
/// # Errors
/// The queue or the object store cannot be reached.
pub async fn read(broker: &Broker, state: &State) -> anyhow::Result<ObjectsSeen> {
    let seen = survey(broker, &Known::of(state), Duration::ZERO).await?;
    let mut wrong = seen.wrong.clone();
    wrong.extend(damaged(broker, &seen).await?);
    Ok(ObjectsSeen { wrong, collected: 0 })
}

/// Reads every object, collects all unreferenced ones of any age, and reads the remaining ones
/// again.
///
/// # Errors
/// The queue or the object store cannot be reached.
pub async fn look(broker: &Broker, state: &State) -> anyhow::Result<ObjectsSeen> {
    let before = survey(broker, &Known::of(state), Duration::ZERO).await?;
    let collected = collect(broker, &before, || true).await?.objects;
    let ObjectsSeen { mut wrong, .. } = read(broker, state).await?;
    // Its segments, which nothing else reads once the runs are over.
    match read_log(broker).await {
        Ok(log) if folded(&log) == *state => {}
        Ok(_) => wrong.push("the log folds into another state".to_owned()),
        Err(error) => wrong.push(format!("the log cannot be read any more: {error:#}")),
    }
    Ok(ObjectsSeen { wrong, collected })
}

/// Where the queue lost its newest part, its key may name a snapshot again that was removed for a newer one.
pub(super) fn check(history: &History) -> Vec<String> {
    let excused = |wrong: &&String| history.losses == 0 || !wrong.contains("the key of the snapshots");
    history.objects.wrong.iter().filter(excused).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::sound;
    use super::*;

    #[tokio::test]
    async fn an_object_that_is_gone_is_found() {
        let mut history = sound().await;
        assert_eq!(check(&history), Vec::<String>::new());
        history
            .objects
            .wrong
            .push("path=s is not there; it is missed by the key of the snapshots".to_owned());
        assert_eq!(check(&history).len(), 1);
        history.losses = 1;
        assert!(check(&history).is_empty());
        history.objects.wrong.push("path=runs/a/blobs/0 is not there".to_owned());
        assert_eq!(check(&history).len(), 1);
    }
}
