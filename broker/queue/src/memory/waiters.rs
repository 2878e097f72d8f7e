//! Who waits for what. A change wakes those alone whom it may concern.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use millrace_schemas::Stage;
use tokio::sync::Notify;

/// What one waits for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Topic {
    /// Tasks of a pool that may be handed out, or leases of its stage that end.
    Tasks(Stage, String),
    /// Tasks that were delivered too often, or leases of any stage that end.
    Exhausted,
    /// Entries of the log.
    Log,
    /// Values of a bucket.
    Keys(&'static str),
}

/// What one that waits found.
#[derive(Debug)]
pub(super) enum Look<T> {
    /// What it waits for.
    Found(T),
    /// It waits on.
    Nothing,
    /// It looks again after all others that can.
    AfterOthers,
}

impl<T> From<Option<T>> for Look<T> {
    fn from(found: Option<T>) -> Self {
        found.map_or(Self::Nothing, Self::Found)
    }
}

/// What a change of tasks means to those who wait.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct News {
    /// These have tasks that may be handed out.
    pub(super) ready: BTreeSet<String>,
    /// A lease or a delay ends before the one that was the first to end.
    pub(super) ends_earlier: bool,
}

/// Those who wait, by what they wait for.
#[derive(Debug, Default)]
pub(super) struct Waiters(Mutex<BTreeMap<Topic, Arc<Notify>>>);

impl Waiters {
    fn topics(&self) -> MutexGuard<'_, BTreeMap<Topic, Arc<Notify>>> {
        self.0.lock().expect("no code panics while it holds the waiters")
    }

    pub(super) fn of(&self, topic: &Topic) -> Arc<Notify> {
        let mut topics = self.topics();
        if let Some(found) = topics.get(topic) {
            return found.clone();
        }
        topics.entry(topic.clone()).or_default().clone()
    }

    pub(super) fn wake(&self, topic: &Topic) {
        if let Some(waiters) = self.topics().get(topic) {
            waiters.notify_waiters();
        }
    }

    pub(super) fn wake_all(&self) {
        self.topics().values().for_each(|waiters| waiters.notify_waiters());
    }

    /// Wakes whom news of a stage concern.
    pub(super) fn tell(&self, stage: Stage, news: News) {
        if news.ends_earlier {
            let topics = self.topics();
            let of_stage = topics.iter().filter(|(topic, _)| match topic {
                Topic::Tasks(of, _) => *of == stage,
                topic => **topic == Topic::Exhausted,
            });
            of_stage.for_each(|(_, waiters)| waiters.notify_waiters());
            return;
        }
        for pool in news.ready {
            self.wake(&Topic::Tasks(stage, pool));
        }
    }
}
