//! Which role may publish and subscribe to which subjects. A role has the rights that its work
//! needs and no others. A process with several roles has a user with all of their rights.

use crate::limits::{
    MAX_MEMBER_CONNECTIONS, MAX_SUBMITTER_CONNECTIONS, MAX_SUBMITTER_SUBSCRIPTIONS, MAX_SUBSCRIPTIONS,
    MAX_USER_CONNECTIONS,
};
use crate::stage::Stage;
use crate::subjects::{
    ADVISORY_STREAM, AGENT_WORKERS, BUCKETS, DEAD_ALL, DEAD_STREAM, DRAIN_WORKERS, GANG_BUCKET, LOG_ALL,
    LOG_STREAM, NOTICE_ALL, NOTICE_WORKERS, POLICY_BUCKET, TASK_ALL, WORKERS_BUCKET, api, bucket_stream,
    dead_of_stage, deaths_of_stage, keys, outcomes_of_stage, streams, task_stream, watched_keys,
};

/// A role in the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The coordinator: decides, and creates streams, consumers and buckets.
    Coordinator,
    /// A person who looks after the server: reads, copies and restores its streams.
    Operator,
    /// Submits runs and reads their status.
    Submitter,
    /// Does the tasks of one stage.
    Worker(Stage),
}

/// The subjects on which a user may publish and to which it may subscribe, in the server's
/// notation. All else is forbidden.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rights {
    /// May publish on these.
    pub publish: Vec<String>,
    /// May subscribe to these.
    pub subscribe: Vec<String>,
    /// May reply to a request on the requester's reply subject.
    pub respond: bool,
}

/// What a user may hold of a server, whatever it does there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Connections at once.
    pub connections: u32,
    /// Subscriptions of each of them.
    pub subscriptions: u32,
}

impl Allowance {
    /// That of a user with all of `roles`: of each number the largest. The coordinator's and the
    /// operator's are not bounded: their keys allow worse than a flood.
    #[must_use]
    pub fn of(roles: &[Role]) -> Option<Self> {
        let each: Option<Vec<Self>> = roles.iter().map(|role| role.allowance()).collect();
        let largest = |a: Self, b: Self| Self {
            connections: a.connections.max(b.connections),
            subscriptions: a.subscriptions.max(b.subscriptions),
        };
        each?.into_iter().reduce(largest)
    }
}

impl Role {
    /// All roles, in the order of a task's life.
    pub const ALL: [Self; 8] = [
        Self::Coordinator,
        Self::Operator,
        Self::Submitter,
        Self::Worker(Stage::Generate),
        Self::Worker(Stage::EnvStep),
        Self::Worker(Stage::Reward),
        Self::Worker(Stage::TrainShard),
        Self::Worker(Stage::PublishWeights),
    ];

    /// The name of the role's user; for a worker its stage's.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Coordinator => "coordinator",
            Self::Operator => "operator",
            Self::Submitter => "submitter",
            Self::Worker(stage) => stage.name(),
        }
    }

    /// Whether its user is in the account of the streams themselves. All others have accounts of their own.
    #[must_use]
    pub const fn is_at_home(self) -> bool {
        match self {
            Self::Coordinator | Self::Operator => true,
            Self::Submitter | Self::Worker(_) => false,
        }
    }

    /// What its user may hold; `None` for no bound.
    const fn allowance(self) -> Option<Allowance> {
        let (connections, subscriptions) = match self {
            Self::Coordinator | Self::Operator => return None,
            Self::Submitter => (MAX_SUBMITTER_CONNECTIONS, MAX_SUBMITTER_SUBSCRIPTIONS),
            Self::Worker(Stage::TrainShard | Stage::PublishWeights) => {
                (MAX_MEMBER_CONNECTIONS, MAX_SUBSCRIPTIONS)
            }
            Self::Worker(_) => (MAX_USER_CONNECTIONS, MAX_SUBSCRIPTIONS),
        };
        Some(Allowance { connections, subscriptions })
    }

    /// What the role may do, its user's replies apart.
    fn rights(self) -> Rights {
        match self {
            Self::Coordinator => coordinator(),
            Self::Operator => operator(),
            Self::Submitter => submitter(),
            Self::Worker(stage) => worker(stage),
        }
    }
}

/// First token of the subjects on which a user gets its replies. No other user may subscribe to
/// them.
#[must_use]
pub fn inbox_prefix(user: &str) -> String {
    format!("_INBOX_{user}")
}

impl Rights {
    /// What `user` may do in all of `roles`.
    #[must_use]
    pub fn of(user: &str, roles: &[Role]) -> Self {
        let replies = format!("{}.>", inbox_prefix(user));
        let mut all = Self { publish: vec![replies.clone()], subscribe: vec![replies], respond: false };
        for role in roles {
            let Self { publish, subscribe, respond } = role.rights();
            all.publish.extend(publish);
            all.subscribe.extend(subscribe);
            all.respond |= respond;
        }
        for subjects in [&mut all.publish, &mut all.subscribe] {
            subjects.sort();
            subjects.dedup();
        }
        all
    }

    /// May read and watch a bucket. This does not include the right to create consumers, which
    /// could direct stored messages to any subject.
    fn read(&mut self, bucket: &str) {
        let stream = bucket_stream(bucket);
        self.publish.push(request("DIRECT.GET", &stream));
        self.publish.push(request("DIRECT.GET", &format!("{stream}.>")));
        self.subscribe.push(watched_keys(bucket));
    }

    fn write(&mut self, bucket: &str) {
        self.publish.push(keys(bucket));
    }

    /// May pull from a consumer of a stream, and settle what it pulled.
    fn pull(&mut self, stream: &str, consumer: &str) {
        for verb in ["CONSUMER.MSG.NEXT", "CONSUMER.INFO"] {
            self.publish.push(request(verb, &format!("{stream}.{consumer}")));
        }
        // The form with a domain and an account before the stream is the server's next.
        self.publish.extend([format!("$JS.ACK.{stream}.>"), format!("$JS.ACK.*.*.{stream}.>")]);
    }
}

/// A request to JetStream.
fn request(verb: &str, of: &str) -> String {
    format!("$JS.API.{verb}.{of}")
}

fn worker(stage: Stage) -> Rights {
    let mut rights = Rights {
        publish: vec![
            outcomes_of_stage(stage),
            deaths_of_stage(stage),
            dead_of_stage(stage),
            NOTICE_WORKERS.to_owned(),
        ],
        subscribe: vec![DRAIN_WORKERS.to_owned()],
        ..Rights::default()
    };
    rights.pull(&task_stream(stage), "*");
    rights.read(POLICY_BUCKET);
    if stage != Stage::PublishWeights {
        // Tasks and batches refer to earlier turns by their position in the log.
        rights.publish.push(request("DIRECT.GET", LOG_STREAM));
    }
    if stage == Stage::EnvStep {
        // A step of an agent that another worker hosts.
        rights.publish.push(AGENT_WORKERS.to_owned());
        rights.subscribe.push(AGENT_WORKERS.to_owned());
    }
    if stage == Stage::TrainShard {
        // Rendezvous and membership of a gang.
        for bucket in [GANG_BUCKET, WORKERS_BUCKET] {
            rights.read(bucket);
            rights.write(bucket);
        }
    }
    rights
}

fn submitter() -> Rights {
    Rights {
        publish: vec![api(">"), "$SRV.>".to_owned()],
        subscribe: vec![NOTICE_ALL.to_owned()],
        respond: false,
    }
}

/// All that the `nats` command does with streams, their copies and its reports of workers. It may not say what
/// another role says: nothing in the log, no key, no task.
fn operator() -> Rights {
    Rights {
        publish: vec!["$JS.API.>".to_owned(), "$JS.SNAPSHOT.>".to_owned()],
        subscribe: vec![NOTICE_ALL.to_owned(), "$JS.EVENT.ADVISORY.>".to_owned()],
        respond: false,
    }
}

fn coordinator() -> Rights {
    let mut rights = Rights {
        publish: [TASK_ALL, LOG_ALL, DEAD_ALL, NOTICE_ALL, DRAIN_WORKERS, "$JS.API.INFO", "$JS.FC.>"]
            .map(str::to_owned)
            .to_vec(),
        subscribe: vec![api(">"), "$SRV.>".to_owned(), NOTICE_ALL.to_owned()],
        respond: true,
    };
    for bucket in BUCKETS {
        rights.read(bucket);
        rights.write(bucket);
        // Reads from the stream's leader, on which writes are conditioned.
        rights.publish.push(request("STREAM.MSG.GET", &bucket_stream(bucket)));
    }
    for stream in streams() {
        for verb in ["STREAM.CREATE", "STREAM.UPDATE", "STREAM.INFO", "CONSUMER.CREATE"] {
            rights.publish.push(request(verb, &stream));
        }
        rights.publish.push(request("CONSUMER.CREATE", &format!("{stream}.>")));
    }
    for stream in Stage::QUEUED.map(task_stream) {
        for verb in ["STREAM.PURGE", "STREAM.MSG.GET", "STREAM.MSG.DELETE"] {
            rights.publish.push(request(verb, &stream));
        }
    }
    // The consumers of members that left.
    let train = task_stream(Stage::TrainShard);
    rights.publish.push(request("CONSUMER.DELETE", &format!("{train}.*")));
    // Checks whether the log still has entries that were read, and trims those that are in
    // segments.
    rights.publish.push(request("STREAM.MSG.GET", LOG_STREAM));
    rights.publish.push(request("STREAM.PURGE", LOG_STREAM));
    rights.publish.push(request("DIRECT.GET", LOG_STREAM));
    rights.publish.push(request("STREAM.MSG.DELETE", DEAD_STREAM));
    rights.pull(ADVISORY_STREAM, "*");
    rights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_makes_and_removes_nothing() {
        for stage in Stage::QUEUED {
            let rights = Rights::of("w", &[Role::Worker(stage)]);
            for verb in ["CREATE", "UPDATE", "DELETE", "PURGE", "STREAM.INFO", "MSG.GET"] {
                assert!(!rights.publish.iter().any(|subject| subject.contains(verb)), "{stage}: {rights:?}");
            }
            assert!(!rights.respond);
        }
    }

    #[test]
    fn a_user_of_several_roles_may_hold_what_the_largest_may() {
        let of = |roles: &[Role]| Allowance::of(roles).expect("it is bounded");
        let (train, reward) = (Role::Worker(Stage::TrainShard), Role::Worker(Stage::Reward));
        assert!(of(&[train]).connections < of(&[reward]).connections);
        assert_eq!(of(&[train, reward]), of(&[reward]));
        assert!(of(&[Role::Submitter]).subscriptions < of(&[Role::Submitter, train]).subscriptions);
        assert_eq!(Allowance::of(&[Role::Coordinator, train]), None);
    }

    #[test]
    fn a_user_of_several_roles_has_the_rights_of_each_once() {
        let both = Rights::of("w", &[Role::Worker(Stage::EnvStep), Role::Worker(Stage::Reward)]);
        let one = Rights::of("w", &[Role::Worker(Stage::Reward)]);
        assert!(one.publish.iter().all(|subject| both.publish.contains(subject)));
        let watched = both.subscribe.iter().filter(|subject| **subject == watched_keys(POLICY_BUCKET));
        assert_eq!(watched.count(), 1);
    }
}
