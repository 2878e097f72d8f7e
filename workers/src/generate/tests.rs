use std::collections::BTreeMap;

use bytes::Bytes;
use millrace_policy::Trainer;
use millrace_queue::clock::SystemClock;
use millrace_queue::{Broker, MemoryQueue, Objects};
use millrace_schemas::RolloutId;
use millrace_schemas::blob::{Sha, paths};
use millrace_schemas::generate::{GenerateDone, GenerateTask, Sampling, Segment};
use millrace_schemas::policy::Policy;
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::subjects::GENERATE_POOL;
use millrace_schemas::submit::ModelSpec;
use millrace_schemas::train_shard::FileRef;

use super::*;
use crate::policy::scripted::{ScriptedTrainer, WEIGHTS_FILE};
use crate::runtime::policies;

mod reading;

fn run() -> RunId {
    "lake".parse().unwrap()
}

/// An executor, and the broker whose policies it follows.
fn bench() -> (Arc<Generate>, Broker) {
    bench_with(None)
}

/// The same with an engine's thread of the test.
fn bench_with(driver: Option<Driver>) -> (Arc<Generate>, Broker) {
    let broker = Broker::new(Arc::new(MemoryQueue::new(Arc::new(SystemClock::new()))), Objects::memory());
    let (table, watch) = policies(broker.clone());
    tokio::spawn(watch.run());
    let versions = VersionStore::new(broker.objects().clone());
    let generate = match driver {
        Some(driver) => Generate::by(Sampler::Thread(driver), table, versions),
        None => Generate::new(table, versions),
    };
    (Arc::new(generate), broker)
}

/// Commits scripted weights as `version`.
async fn commit(broker: &Broker, version: u64) -> Manifest {
    let mut files = Vec::new();
    for (name, content) in ScriptedTrainer.initialise(&ModelSpec::Scripted, version).unwrap().files {
        files.push(FileRef::whole(name, broker.objects().put_blob(&run(), content).await.unwrap()));
    }
    let (batch, metrics, version) = (None, BTreeMap::new(), PolicyVersion(version));
    let manifest =
        Manifest { run: run(), version, parent: None, batch, config: Sha::of(b""), files, metrics };
    broker.objects().put(&paths::manifest(&run(), version), manifest.to_json().into()).await.unwrap();
    manifest
}

async fn announce(broker: &Broker, manifest: &Manifest) {
    let (version, sha) = (manifest.version, Sha::of(&manifest.to_json()));
    let policy =
        Policy { version, manifest: sha, floor: PolicyVersion(0), attempt: 0, partitions: 1, ended: false };
    broker.set_policy(&run(), &policy).await.unwrap();
}

fn task(index: u32, min_version: u64, max_new_tokens: u32) -> Task {
    Task {
        run: run(),
        key: TaskKey::Generate { rollout: RolloutId { group: 0, index, attempt: 0 }, turn: 1 },
        pool: GENERATE_POOL.parse().unwrap(),
        version: PolicyVersion(min_version),
        evaluate: false,
        body: TaskBody::Generate(GenerateTask {
            min_version: PolicyVersion(min_version),
            ..GenerateTask::new(vec![1, 2, 3], max_new_tokens, Sampling::at(1.0), u64::from(index))
        }),
    }
}

async fn execute(generate: &Generate, task: Task) -> Verdict {
    generate.execute(task, CancellationToken::new()).await
}

fn segments(verdict: &Verdict) -> &[Segment] {
    match verdict {
        Verdict::Done(OutcomeBody::Generate(done), _) => &done.segments,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn many_requests_share_an_engine_and_its_time() {
    let (generate, broker) = bench();
    announce(&broker, &commit(&broker, 2).await).await;
    let mut requests = Vec::new();
    for index in 0..200 {
        let generate = generate.clone();
        requests.push(tokio::spawn(async move { execute(&generate, task(index, 1, 3)).await }));
    }
    for request in requests {
        let verdict = request.await.unwrap();
        assert_eq!(segments(&verdict), [Segment { version: PolicyVersion(2), tokens: 3 }]);
        let Verdict::Done(_, Cost { busy: Some(busy), tokens: 3 }) = verdict else { panic!("{verdict:?}") };
        assert!(busy > Duration::ZERO && busy < Duration::from_secs(1));
    }
}

#[tokio::test]
async fn a_task_waits_for_weights_that_are_new_enough() {
    let (generate, broker) = bench();
    announce(&broker, &commit(&broker, 2).await).await;
    let early = execute(&generate, task(0, 2, 1)).await;
    assert_eq!(segments(&early)[0].version, PolicyVersion(2));

    let waiting = generate.clone();
    let waiting = tokio::spawn(async move { execute(&waiting, task(1, 3, 1)).await });
    // Others are served meanwhile.
    segments(&execute(&generate, task(2, 1, 1)).await);
    assert!(!waiting.is_finished());
    announce(&broker, &commit(&broker, 3).await).await;
    assert_eq!(segments(&waiting.await.unwrap())[0].version, PolicyVersion(3));
    let later = execute(&generate, task(3, 0, 1)).await;
    assert_eq!(segments(&later)[0].version, PolicyVersion(3), "the newest serves all");
}

/// Requests in flight when new weights come: each continues, its tokens so far keep their version,
/// and the engine makes no step between the two.
#[tokio::test]
async fn engine_sleeps_safely() {
    const TOKENS: u32 = 20_000;
    const DOUBLINGS: u64 = 5;
    let (generate, broker) = bench();
    announce(&broker, &commit(&broker, 1).await).await;
    segments(&execute(&generate, task(0, 1, 1)).await);
    // The weights may come before the first token or after the last; then they come again, to
    // longer turns.
    for version in 2.. {
        let tokens = TOKENS << (version - 2).min(DOUBLINGS);
        assert!(version < 100, "no request was ever in flight when the weights came");
        let request = |index: u32| {
            let generate = generate.clone();
            tokio::spawn(async move { execute(&generate, task(index, 1, tokens)).await })
        };
        let first = (0..8).map(request).collect::<Vec<_>>();
        announce(&broker, &commit(&broker, version).await).await;
        let second = (8..16).map(request).collect::<Vec<_>>();
        let mut across = 0;
        for answer in first.into_iter().chain(second) {
            let answer = answer.await.unwrap();
            let segments = segments(&answer);
            let drawn: u32 = segments.iter().map(|segment| segment.tokens).sum();
            assert_eq!(drawn, tokens, "{segments:?}");
            let versions: Vec<u64> = segments.iter().map(|segment| segment.version.0).collect();
            assert!(versions.is_sorted(), "{versions:?}");
            across += u32::from(versions.len() > 1);
        }
        if across > 0 {
            break;
        }
    }
}

#[tokio::test]
async fn engine_proves_its_weights() {
    let (generate, broker) = bench();
    let manifest = commit(&broker, 2).await;
    let weights = manifest.file(WEIGHTS_FILE).unwrap();
    let at = paths::blob(&run(), &weights.sha256);
    let sound = broker.objects().get(&at).await.unwrap().unwrap();
    let mut tampered = sound.to_vec();
    tampered[7] ^= 1;
    broker.objects().put(&at, Bytes::from(tampered)).await.unwrap();
    announce(&broker, &manifest).await;
    match execute(&generate, task(0, 2, 1)).await {
        Verdict::RetryAfter(_, reason) => assert!(reason.contains("corrupt"), "{reason}"),
        other => panic!("sampled with weights that nobody trained: {other:?}"),
    }
    // Once the object is sound again the engine serves, without a restart.
    broker.objects().put(&at, sound).await.unwrap();
    let mut verdict = execute(&generate, task(0, 2, 1)).await;
    while matches!(verdict, Verdict::RetryAfter(..)) {
        tokio::task::yield_now().await;
        verdict = execute(&generate, task(0, 2, 1)).await;
    }
    assert_eq!(segments(&verdict)[0].version, PolicyVersion(2));
}

/// Its tasks are another worker's: each is passed on where it comes first, and where it comes again it is no failed try, so
/// that no number of them buries it.
#[tokio::test]
async fn a_worker_that_cannot_load_weights_buries_no_task() {
    let (generate, broker) = bench();
    let manifest = commit(&broker, 2).await;
    let at = paths::blob(&run(), &manifest.file(WEIGHTS_FILE).unwrap().sha256);
    let sound = broker.objects().get(&at).await.unwrap().unwrap();
    broker.objects().put(&at, Bytes::from_static(b"damaged")).await.unwrap();
    announce(&broker, &manifest).await;
    assert!(!generate.passes_on(&task(0, 2, 1)), "nothing is known yet");
    let tries = (0..20).map(|index| {
        let generate = generate.clone();
        tokio::spawn(async move {
            let cancel = CancellationToken::new();
            let verdict = generate.execute(task(index, 2, 1), cancel.clone()).await;
            // What the queue is told of a task whose last delivery this was: to queue it again.
            (matches!(verdict, Verdict::RetryAfter(..)), cancel.is_cancelled())
        })
    });
    for tried in tries.collect::<Vec<_>>() {
        assert_eq!(tried.await.unwrap(), (true, true));
    }
    assert!(generate.passes_on(&task(0, 2, 1)));
    assert!(generate.waits_for().is_some_and(|why| why.contains("corrupt")), "{:?}", generate.waits_for());
    broker.objects().put(&at, sound).await.unwrap();
    segments(&execute(&generate, task(0, 2, 1)).await);
    assert!(!generate.passes_on(&task(0, 2, 1)));
}

#[tokio::test]
async fn a_manifest_that_the_policy_does_not_name_is_refused() {
    let (generate, broker) = bench();
    let manifest = commit(&broker, 2).await;
    let (version, floor) = (manifest.version, PolicyVersion(0));
    let policy =
        Policy { version, manifest: Sha::of(b"another"), floor, attempt: 0, partitions: 1, ended: false };
    broker.set_policy(&run(), &policy).await.unwrap();
    match execute(&generate, task(0, 2, 1)).await {
        Verdict::RetryAfter(_, reason) => assert!(reason.contains("not the one named"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_version_before_serves_while_the_next_cannot_be_loaded() {
    let (generate, broker) = bench();
    announce(&broker, &commit(&broker, 2).await).await;
    segments(&execute(&generate, task(0, 2, 1)).await);
    let next = commit(&broker, 3).await;
    broker.objects().delete(&paths::blob(&run(), &next.file(WEIGHTS_FILE).unwrap().sha256)).await.unwrap();
    announce(&broker, &next).await;
    let blocked = execute(&generate, task(1, 3, 1)).await;
    assert!(matches!(blocked, Verdict::RetryAfter(..)), "{blocked:?}");
    let waits_for = generate.waits_for().expect("what asks for v3 waits");
    assert!(waits_for.contains("version=v3 are not loaded"), "{waits_for}");
    assert_eq!(segments(&execute(&generate, task(2, 2, 1)).await)[0].version, PolicyVersion(2));
}

#[tokio::test]
async fn a_request_for_no_tokens_is_poison() {
    let (generate, _broker) = bench();
    let mut empty = task(0, 0, 1);
    let TaskBody::Generate(body) = &mut empty.body else { unreachable!() };
    body.context.clear();
    for wicked in [empty, task(0, 0, 0)] {
        let verdict = execute(&generate, wicked).await;
        assert!(matches!(verdict, Verdict::Poison(_)), "{verdict:?}");
    }
}

#[tokio::test]
async fn a_cancelled_request_leaves_the_engine() {
    let (generate, broker) = bench();
    announce(&broker, &commit(&broker, 2).await).await;
    segments(&execute(&generate, task(0, 2, 1)).await);
    let cancel = CancellationToken::new();
    let (endless, token) = (generate.clone(), cancel.clone());
    let endless = tokio::spawn(async move { endless.execute(task(1, 2, u32::MAX), token).await });
    segments(&execute(&generate, task(2, 2, 1)).await);
    assert!(!endless.is_finished());
    cancel.cancel();
    let verdict = endless.await.unwrap();
    assert!(matches!(verdict, Verdict::RetryAfter(..)), "its reply is dropped: {verdict:?}");
}

#[tokio::test]
async fn an_ended_run_is_forgotten() {
    let (generate, broker) = bench();
    let manifest = commit(&broker, 2).await;
    announce(&broker, &manifest).await;
    segments(&execute(&generate, task(0, 2, 1)).await);
    let sha = Sha::of(&manifest.to_json());
    let ended = Policy {
        version: manifest.version,
        manifest: sha,
        floor: PolicyVersion(0),
        attempt: 0,
        partitions: 1,
        ended: true,
    };
    broker.set_policy(&run(), &ended).await.unwrap();
    while !generate.runs.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
}

/// A part of a turn, the worker that handed it back, and that worker's broker.
async fn begun() -> (GenerateDone, Arc<Generate>, Broker) {
    // As long as a turn may be. The test may find it ended, or not yet begun: then it plays another.
    const LONG: u32 = limits::MAX_CONTEXT_TOKENS as u32;
    for _ in 0..100 {
        let (generate, broker) = bench();
        announce(&broker, &commit(&broker, 2).await).await;
        segments(&execute(&generate, task(0, 2, 1)).await);
        let (worker, cancel) = (generate.clone(), CancellationToken::new());
        let long = tokio::spawn(async move {
            cancel.run_until_cancelled(worker.execute(task(1, 2, LONG), cancel.clone())).await
        });
        segments(&execute(&generate, task(2, 2, 1)).await);
        assert!(generate.hand_back());
        let Some(verdict) = long.await.unwrap() else { continue };
        let Verdict::Done(OutcomeBody::Generate(part), cost) = verdict else { panic!("{verdict:?}") };
        if part.finish == Finish::Partial {
            assert_eq!((cost.tokens, part.check()), (part.tokens.len() as u64, Ok(())));
            return (part, generate, broker);
        }
    }
    panic!("each turn ended before its worker left")
}

#[tokio::test]
async fn a_turn_is_handed_back_and_another_worker_continues_it() {
    let (part, _, broker) = begun().await;
    let tokens = part.tokens.len();
    // The other worker has newer weights by now.
    announce(&broker, &commit(&broker, 3).await).await;
    let (table, watch) = policies(broker.clone());
    tokio::spawn(watch.run());
    let other = Generate::new(table, VersionStore::new(broker.objects().clone()));
    let mut rest = task(1, 2, tokens as u32 + 5);
    let TaskBody::Generate(body) = &mut rest.body else { unreachable!() };
    body.min_version = PolicyVersion(3);
    body.sampled = Some(Box::new(part.clone()));
    let verdict = execute(&other, rest).await;
    let Verdict::Done(OutcomeBody::Generate(whole), _) = verdict else { panic!("{verdict:?}") };
    assert_eq!((whole.tokens.len(), whole.finish, whole.check()), (tokens + 5, Finish::Length, Ok(())));
    assert_eq!(whole.tokens[..tokens], part.tokens);
    assert_eq!(whole.logprobs[..tokens], part.logprobs);
    let versions: Vec<_> = whole.segments.iter().map(|segment| (segment.version.0, segment.tokens)).collect();
    assert_eq!(versions, [(2, tokens as u32), (3, 5)]);
}

/// At the end of an attempt's time all of its tokens would be lost, and the next attempt would sample them again.
#[tokio::test]
async fn a_turn_that_takes_longer_than_an_attempt_is_handed_back_and_continued() {
    let (_, broker) = bench();
    announce(&broker, &commit(&broker, 2).await).await;
    let (table, watch) = policies(broker.clone());
    tokio::spawn(watch.run());
    let worker = Generate::new(table, VersionStore::new(broker.objects().clone()));
    segments(&execute(&worker, task(0, 2, 1)).await);
    let hasty = Generate { turn_time: Duration::from_millis(1), ..worker };
    let mut long = task(1, 2, limits::MAX_CONTEXT_TOKENS as u32);
    let (mut sampled, mut attempts) = (0, 0);
    while attempts < 3 {
        let verdict = execute(&hasty, long.clone()).await;
        // It was too slow for one token: a try is charged, so that a turn which nobody can begin does not go round for ever.
        if matches!(&verdict, Verdict::RetryAfter(_, reason) if reason.contains("no token was sampled")) {
            continue;
        }
        let Verdict::Done(OutcomeBody::Generate(part), cost) = verdict else { panic!("{verdict:?}") };
        assert_eq!((part.finish, part.check()), (Finish::Partial, Ok(())));
        assert_eq!(cost.tokens, part.tokens.len() as u64);
        assert!(part.tokens.len() > sampled, "it goes on");
        (sampled, attempts) = (part.tokens.len(), attempts + 1);
        let TaskBody::Generate(body) = &mut long.body else { unreachable!() };
        body.sampled = Some(Box::new(part));
    }
    assert!(!hasty.device.begin_turn().hand_back().is_cancelled(), "its worker does not leave");
}

/// Nothing to hand back: the queue gets the task as it was.
#[tokio::test]
async fn a_worker_that_leaves_before_the_first_token_gives_the_task_up() {
    let (part, generate, broker) = begun().await;
    // It has no weights of this version, and it has sampled no token of a continued turn.
    let mut continued = task(4, 2, limits::MAX_CONTEXT_TOKENS as u32);
    let TaskBody::Generate(body) = &mut continued.body else { unreachable!() };
    body.sampled = Some(Box::new(part));
    for task in [task(3, 9, 5), continued] {
        let cancel = CancellationToken::new();
        let executed = generate.execute(task, cancel.clone());
        assert_eq!(cancel.run_until_cancelled(executed).await, None);
    }
    drop(broker);
}
