//! Each rank of a gang fetches its own share of a batch, on a real nats-server.

use futures::future::join_all;
use millrace_policy::random::Stream;
use millrace_queue::testing::{TestServer, received_bytes};
use millrace_queue::{JetStream, JetStreamOptions};
use millrace_schemas::env_step::EnvStepDone;
use millrace_schemas::generate::{Finish, GenerateDone, Segment};
use millrace_schemas::train_shard::{BatchGroup, BatchRollout, BatchTurn, StoredTrajectory};
use millrace_schemas::{EntryRef, Event, Outcome, RolloutId};

use super::*;

const GROUPS: u64 = 6;
const SIZE: u32 = 4;

/// A rollout of one long turn in the log, and how a batch refers to it.
async fn stored(broker: &Broker, id: RolloutId, random: &mut Stream) -> BatchRollout {
    let mut tokens = |count: u64| (0..count).map(|_| random.below(50_000) as u32).collect::<Vec<_>>();
    let (observation, turn) = (tokens(100), tokens(1_500 + 100 * u64::from(id.index)));
    let segments = vec![Segment { version: PolicyVersion(0), tokens: turn.len() as u32 }];
    let logprobs = turn.iter().map(|token| -(*token as f32) / 7.0).collect();
    let bodies = [
        OutcomeBody::EnvStep(EnvStepDone { observation, ..EnvStepDone::default() }),
        OutcomeBody::Generate(GenerateDone {
            tokens: turn,
            logprobs,
            segments: segments.clone(),
            finish: Finish::Stop,
            ..GenerateDone::begun(0)
        }),
    ];
    let mut entries = Vec::new();
    for body in bodies {
        let key = match &body {
            OutcomeBody::Generate(_) => TaskKey::Generate { rollout: id, turn: 0 },
            _ => TaskKey::EnvStep { rollout: id, turn: 0 },
        };
        let worker = "w".parse().unwrap();
        let event = Event::Outcome(Outcome {
            key,
            worker,
            busy_us: 1,
            request_fingerprint: Some(7),
            body: body.clone(),
        });
        let seq = broker.append(run().as_str(), &event).await.unwrap().seq;
        entries.push(EntryRef::of(seq, &body).unwrap());
    }
    BatchRollout {
        id,
        start_version: PolicyVersion(0),
        reward: f64::from(id.index),
        success: false,
        truncated: false,
        tokens: Vec::new(),
        turns: vec![BatchTurn { at: 0, logprobs: Vec::new(), segments, reward: 0.0 }],
        forks: Vec::new(),
        stored: Some(StoredTrajectory { entries, uncut_logprobs: false }),
    }
}

/// A batch whose turns are in the log, on version 0.
async fn stored_batch(broker: &Broker, manifest: Sha) -> BlobRef {
    let mut random = Stream::new(3);
    let mut groups = Vec::new();
    for group in 0..GROUPS {
        let mut rollouts = Vec::new();
        for index in 0..SIZE {
            rollouts.push(stored(broker, RolloutId { group, index, attempt: 0 }, &mut random).await);
        }
        groups.push(BatchGroup { group, domain: 0, rollouts });
    }
    let blob = batch(broker.objects(), manifest, 0, 1).await;
    let mut batch: Batch = decode("batch", &broker.objects().get_blob(&run(), &blob).await.unwrap()).unwrap();
    batch.groups = groups;
    broker.objects().put_blob(&run(), encode(&batch)).await.unwrap()
}

/// Lets a gang make the step; what each rank's own connection received for it, in bytes.
async fn received(server: &TestServer, objects: &Objects, step: &Task, world: u32) -> Vec<u64> {
    let rendezvous: Arc<dyn Rendezvous> = Arc::new(MemoryRendezvous::default());
    let ranks = (0..world).map(async |rank| {
        let queue = JetStream::connect(server.url(), "rank", JetStreamOptions::default()).await.unwrap();
        let broker = Broker::new(queue.clone(), objects.clone());
        let trainer = TrainShard::new(VersionStore::new(objects.clone())).reading(Some(broker));
        let trainer = trainer.with_rendezvous(rendezvous.clone());
        let mut task = step.clone();
        if let TaskBody::TrainShard(shard) = &mut task.body {
            (shard.rank, shard.world, shard.gang, shard.timeout_ms) = (rank, world, 1, 60_000);
        }
        let before = received_bytes(&queue);
        let verdict = trainer.execute(task, CancellationToken::new()).await;
        assert!(matches!(verdict, Verdict::Done(OutcomeBody::TrainShard(_), _)), "{verdict:?}");
        received_bytes(&queue) - before
    });
    join_all(ranks).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_rank_fetches_its_own_share() {
    let server = TestServer::start().await;
    let objects = Objects::memory();
    let broker = Broker::new(server.connect(JetStreamOptions::default()).await, objects.clone());
    let manifest = commit(&objects, 0, files(&objects, initialise(1)).await).await;
    let step = step(0, manifest, stored_batch(&broker, manifest).await);
    let whole = received(&server, &objects, &step, 1).await[0] as f64;
    // Each sampled token and its log-probability are some bytes.
    assert!(whole > f64::from(SIZE) * GROUPS as f64 * 1_500.0 * 4.0, "{whole}");
    for world in [2, 3] {
        let each = received(&server, &objects, &step, world).await;
        let fair = whole / f64::from(world);
        assert!(each.iter().all(|bytes| (*bytes as f64 / fair - 1.0).abs() < 0.1), "{each:?} of {whole}");
    }
}
