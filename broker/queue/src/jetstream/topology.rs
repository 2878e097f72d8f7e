//! Streams, consumers and buckets on the server. Existing ones are not changed, so that an
//! operator's settings (replicas, placement, limits) remain.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PriorityPolicy, pull};
use async_nats::jetstream::context::{CreateKeyValueErrorKind, CreateStreamError, CreateStreamErrorKind};
use async_nats::jetstream::stream::{
    Config, ConsumerCreateStrictErrorKind, DiscardPolicy, Republish, RetentionPolicy, StorageType,
};
use async_nats::jetstream::{ErrorCode, kv};
use millrace_schemas::subjects::{
    ADVISORY_MAX_DELIVERIES, ADVISORY_STREAM, COORDINATOR_BUCKET, DEAD_ALL, DEAD_STREAM, GANG_BUCKET,
    LOG_ALL, LOG_STREAM, POLICY_BUCKET, PRIORITY_GROUP, WORKERS_BUCKET, bucket_stream, consumer,
    consumer_filter, keys, task_stream, task_stream_subjects, watched_keys,
};
use millrace_schemas::{PoolName, Stage, limits};
use tokio::time::{Instant, sleep};

use super::api::{LOG_ID, stream_range};
use super::connection::{Connection, Storage};
use super::violation::Violations;
use crate::port::QueueError;

/// The consumer that reads the notices of tasks delivered too often.
pub(super) const EXHAUSTED_CONSUMER: &str = "exhausted";
/// How long notices of exhausted tasks are kept. Each is read at once while a coordinator is there.
const ADVISORY_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long keys are kept by which the members of a gang find one another.
const GANG_AGE: Duration = Duration::from_secs(24 * 3600);
/// How long heartbeats are kept: who was silent for so long left long ago.
const HEARTBEAT_AGE: Duration = Duration::from_secs(600);
/// How long a cluster may take to elect its leaders, and to learn of its servers.
const ELECTION: Duration = Duration::from_secs(60);
/// Pauses between tries: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Where requests to create streams and buckets go.
const STREAM_API: &str = "$JS.API.STREAM.";
/// No age limit, as the server encodes it.
const FOR_EVER: Duration = Duration::ZERO;

/// Creates what is missing. What fails for the moment is tried again for [`ELECTION`]: the servers
/// of a cluster that has just started elect their leaders first.
///
/// # Errors
/// The server refuses, this user may not create streams, or the cluster has no leader for so long.
pub(super) async fn ensure(connection: &Connection) -> Result<(), QueueError> {
    let mut heard = connection.violations().listen();
    let give_up = Instant::now() + ELECTION;
    let made = async {
        let mut pause = FIRST_PAUSE;
        loop {
            match ensure_once(connection).await {
                Err(error) if error.is_transient() && Instant::now() + pause < give_up => {
                    tracing::warn!(%error, "trying again to make streams and buckets");
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                made => return made,
            }
        }
    };
    tokio::select! {
        made = made => made,
        subject = Violations::forbidden_below(&mut heard, STREAM_API) => {
            let reason = connection.violations().reason(&subject);
            Err(QueueError::Refused { action: "make streams and buckets", reason })
        }
    }
}

async fn ensure_once(connection: &Connection) -> Result<(), QueueError> {
    for stage in Stage::QUEUED {
        let config = Config {
            retention: RetentionPolicy::WorkQueue,
            // The server itself refuses a task that is queued already.
            max_messages_per_subject: 1,
            discard: DiscardPolicy::New,
            discard_new_per_subject: true,
            max_consumers: limits::MAX_POOLS,
            ..stream(connection, task_stream(stage), task_stream_subjects(stage))
        };
        create_stream(connection, config).await?;
    }
    let log = stream(connection, LOG_STREAM.into(), LOG_ALL.into());
    let settings = &connection.options.settings;
    let log = Config { duplicate_window: settings.dedup_window, ..kept(log, settings.max_log_bytes) };
    create_stream(connection, log).await?;
    name_log(connection).await?;
    let dead = stream(connection, DEAD_STREAM.into(), DEAD_ALL.into());
    create_stream(connection, kept(dead, limits::MAX_DEAD_BYTES)).await?;
    let advisories = stream(connection, ADVISORY_STREAM.into(), ADVISORY_MAX_DELIVERIES.into());
    let max_bytes = limits::MAX_ADVISORY_BYTES;
    create_stream(connection, Config { max_age: ADVISORY_AGE, max_bytes, ..advisories }).await?;
    create_consumer(connection, ADVISORY_STREAM, exhausted_consumer(connection)).await?;
    create_bucket(connection, POLICY_BUCKET, FOR_EVER).await?;
    create_bucket(connection, COORDINATOR_BUCKET, FOR_EVER).await?;
    create_bucket(connection, WORKERS_BUCKET, HEARTBEAT_AGE).await?;
    // A full bucket still takes another heartbeat of a name that it has: who floods it with names silences nobody.
    mend_bucket(connection, WORKERS_BUCKET, Some(limits::MAX_NAMES)).await?;
    create_bucket(connection, GANG_BUCKET, GANG_AGE).await
}

pub(super) async fn ensure_pool(
    connection: &Connection,
    stage: Stage,
    pool: &PoolName,
) -> Result<(), QueueError> {
    create_consumer(connection, &task_stream(stage), pool_consumer(connection, stage, pool)).await
}

pub(super) async fn ensure_partition(
    connection: &Connection,
    stage: Stage,
    pool: &PoolName,
) -> Result<(), QueueError> {
    let plain = pool_consumer(connection, stage, pool);
    let config = pull::Config {
        max_deliver: plain.max_deliver.saturating_add(limits::HAND_BACKS),
        priority_policy: PriorityPolicy::Prioritized,
        priority_groups: vec![PRIORITY_GROUP.into()],
        ..plain
    };
    create_consumer(connection, &task_stream(stage), config).await
}

fn pool_consumer(connection: &Connection, stage: Stage, pool: &PoolName) -> pull::Config {
    let settings = &connection.options.settings;
    pull::Config {
        durable_name: Some(consumer(pool)),
        filter_subject: consumer_filter(stage, pool),
        ack_policy: AckPolicy::Explicit,
        deliver_policy: DeliverPolicy::All,
        ack_wait: settings.ack_wait,
        max_deliver: settings.max_deliver,
        max_ack_pending: limits::MAX_ACK_PENDING,
        max_waiting: limits::MAX_WAITING_PULLS,
        inactive_threshold: Duration::from_millis(limits::IDLE_POOL_MS),
        ..pull::Config::default()
    }
}

/// What all our streams have in common.
fn stream(connection: &Connection, name: String, subjects: String) -> Config {
    let storage = match connection.options.storage {
        Storage::File => StorageType::File,
        Storage::Memory => StorageType::Memory,
    };
    let num_replicas = connection.options.replicas;
    Config { name, subjects: vec![subjects], storage, num_replicas, allow_direct: true, ..Config::default() }
}

/// A stream that keeps what it has when it is full, and takes no more.
fn kept(config: Config, max_bytes: i64) -> Config {
    Config { max_bytes, discard: DiscardPolicy::New, ..config }
}

fn exhausted_consumer(connection: &Connection) -> pull::Config {
    pull::Config {
        durable_name: Some(EXHAUSTED_CONSUMER.into()),
        ack_policy: AckPolicy::Explicit,
        deliver_policy: DeliverPolicy::All,
        ack_wait: connection.options.settings.ack_wait,
        ..pull::Config::default()
    }
}

/// What failed, and whether trying again may help.
fn failed(action: &'static str, transient: bool, reason: String) -> QueueError {
    match transient {
        true => QueueError::Unavailable { action, reason },
        false => QueueError::Refused { action, reason },
    }
}

async fn create_stream(connection: &Connection, config: Config) -> Result<(), QueueError> {
    let name = config.name.clone();
    let mut created = connection.impatient.create_stream(config.clone()).await.map(drop);
    if config.max_bytes > 0 && created.as_ref().is_err_and(has_no_room) {
        tracing::warn!(
            stream = name,
            max_bytes = config.max_bytes,
            "the server has less room; its own limit holds"
        );
        created = connection.impatient.create_stream(Config { max_bytes: -1, ..config }).await.map(drop);
    }
    let Err(error) = created else { return Ok(()) };
    let reason = format!("stream={name}: {error}");
    match error.kind() {
        // It is there, with other settings.
        CreateStreamErrorKind::JetStream(e) if e.error_code() == ErrorCode::STREAM_NAME_EXIST => Ok(()),
        CreateStreamErrorKind::JetStream(e) => Err(failed("make a stream", e.code() == 503, reason)),
        CreateStreamErrorKind::TimedOut
        | CreateStreamErrorKind::JetStreamUnavailable
        | CreateStreamErrorKind::Response
        | CreateStreamErrorKind::ResponseParse
        | CreateStreamErrorKind::NotFound => Err(failed("make a stream", true, reason)),
        CreateStreamErrorKind::EmptyStreamName
        | CreateStreamErrorKind::InvalidStreamName
        | CreateStreamErrorKind::DomainAndExternalSet => Err(failed("make a stream", false, reason)),
    }
}

/// Writes the log's id into its stream, which a restored copy has too, where its time of creation may be another.
async fn name_log(connection: &Connection) -> Result<(), QueueError> {
    let fail = |reason: String| failed("name the log", true, format!("stream={LOG_STREAM}: {reason}"));
    let stream = connection.impatient.get_stream(LOG_STREAM).await.map_err(|e| fail(e.to_string()))?;
    let mut config = stream.cached_info().config.clone();
    if config.metadata.contains_key(LOG_ID) {
        return Ok(());
    }
    let id = stream_range(connection, LOG_STREAM).await?.id;
    config.metadata.insert(LOG_ID.to_owned(), format!("{id:016x}"));
    connection.impatient.update_stream(config).await.map(drop).map_err(|e| fail(e.to_string()))
}

/// Whether the server cannot set so many bytes aside.
fn has_no_room(error: &CreateStreamError) -> bool {
    let no_room = [
        ErrorCode::STORAGE_RESOURCES_EXCEEDED,
        ErrorCode::MEMORY_RESOURCES_EXCEEDED,
        // The error of a cluster none of whose servers accepts the stream.
        ErrorCode::CLUSTER_NO_PEERS,
    ];
    matches!(error.kind(), CreateStreamErrorKind::JetStream(e) if no_room.contains(&e.error_code()))
}

async fn create_consumer(
    connection: &Connection,
    stream: &str,
    config: pull::Config,
) -> Result<(), QueueError> {
    let name = config.durable_name.clone().unwrap_or_default();
    let error = match connection.context.create_consumer_strict_on_stream(config, stream).await {
        Ok(_) => return Ok(()),
        Err(e) => e,
    };
    let reason = format!("stream={stream} consumer={name}: {error}");
    match error.kind() {
        ConsumerCreateStrictErrorKind::AlreadyExists => Ok(()),
        ConsumerCreateStrictErrorKind::JetStream(e)
            if [ErrorCode::CONSUMER_ALREADY_EXISTS, ErrorCode::CONSUMER_NAME_EXIST]
                .contains(&e.error_code()) =>
        {
            Ok(())
        }
        ConsumerCreateStrictErrorKind::JetStream(e) => {
            Err(failed("make a consumer", e.code() == 503, reason))
        }
        ConsumerCreateStrictErrorKind::TimedOut
        | ConsumerCreateStrictErrorKind::Request
        | ConsumerCreateStrictErrorKind::Other => Err(failed("make a consumer", true, reason)),
        ConsumerCreateStrictErrorKind::InvalidConsumerType | ConsumerCreateStrictErrorKind::InvalidName => {
            Err(failed("make a consumer", false, reason))
        }
    }
}

async fn create_bucket(connection: &Connection, bucket: &str, max_age: Duration) -> Result<(), QueueError> {
    let common = stream(connection, String::new(), String::new());
    let config = kv::Config {
        bucket: bucket.into(),
        history: 1,
        max_age,
        storage: common.storage,
        num_replicas: common.num_replicas,
        republish: Some(repeated(bucket)),
        max_bytes: limits::MAX_BUCKET_BYTES,
        ..kv::Config::default()
    };
    let mut created = connection.impatient.create_key_value(config.clone()).await.map(drop);
    if created.as_ref().is_err_and(|e| caused_by(e).is_some_and(has_no_room)) {
        created =
            connection.impatient.create_key_value(kv::Config { max_bytes: -1, ..config }).await.map(drop);
    }
    let Err(error) = created else { return Ok(()) };
    let reason = format!("bucket={bucket}: {error}");
    match error.kind() {
        // It is there, with other settings.
        CreateKeyValueErrorKind::BucketCreate if exists(&error) => {
            mend_bucket(connection, bucket, None).await
        }
        CreateKeyValueErrorKind::InvalidStoreName
        | CreateKeyValueErrorKind::TooLongHistory
        | CreateKeyValueErrorKind::LimitMarkersNotSupported => Err(failed("make a bucket", false, reason)),
        CreateKeyValueErrorKind::JetStream
        | CreateKeyValueErrorKind::BucketCreate
        | CreateKeyValueErrorKind::TimedOut => Err(failed("make a bucket", true, reason)),
    }
}

/// Where the server repeats a bucket's changes for those who watch.
fn repeated(bucket: &str) -> Republish {
    Republish { source: keys(bucket), destination: watched_keys(bucket), headers_only: false }
}

/// Brings a bucket what it was not made with: repeated changes, for in buckets of earlier versions watchers would learn
/// of changes late; and a bound of names.
async fn mend_bucket(connection: &Connection, bucket: &str, names: Option<i64>) -> Result<(), QueueError> {
    let fail = |reason: String| failed("change a bucket", true, format!("bucket={bucket}: {reason}"));
    let stream = connection.impatient.get_stream(bucket_stream(bucket)).await;
    let stream = stream.map_err(|e| fail(e.to_string()))?;
    let standing = &stream.cached_info().config;
    let mut config = standing.clone();
    config.republish.get_or_insert_with(|| repeated(bucket));
    if let Some(names) = names.filter(|_| config.max_messages <= 0) {
        (config.max_messages, config.max_message_size) = (names, limits::MAX_HEARTBEAT_BYTES);
    }
    if config == *standing {
        return Ok(());
    }
    connection.impatient.update_stream(config).await.map(|_| ()).map_err(|e| fail(e.to_string()))
}

fn exists(error: &(dyn std::error::Error + 'static)) -> bool {
    caused_by(error).is_some_and(|e| {
        matches!(e.kind(), CreateStreamErrorKind::JetStream(e) if e.error_code() == ErrorCode::STREAM_NAME_EXIST)
    })
}

/// What the server said of a bucket's stream.
fn caused_by<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a CreateStreamError> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(e) = error.downcast_ref::<CreateStreamError>() {
            return Some(e);
        }
        next = error.source();
    }
    None
}
