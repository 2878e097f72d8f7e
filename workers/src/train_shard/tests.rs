use std::collections::BTreeMap;

use bytes::Bytes;
use millrace_policy::is_for_training;
use millrace_queue::Objects;
use millrace_schemas::PolicyVersion;
use millrace_schemas::blob::paths;
use millrace_schemas::envelope::encode;
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::subjects::TRAIN_POOL;
use millrace_schemas::submit::ModelSpec;
use millrace_schemas::{RunId, TaskKey};

use super::*;

mod shares;

fn run() -> RunId {
    "lake".parse().unwrap()
}

fn task(makes: u64, world: u32, work: TrainWork) -> Task {
    Task {
        run: run(),
        key: TaskKey::TrainShard { makes, rank: 0, attempt: 0 },
        pool: TRAIN_POOL.parse().unwrap(),
        version: PolicyVersion(makes.saturating_sub(1)),
        evaluate: false,
        body: TaskBody::TrainShard(TrainShardTask { rank: 0, world, gang: 0, timeout_ms: 0, work }),
    }
}

fn initialise(world: u32) -> Task {
    task(0, world, TrainWork::Initialise { model: ModelSpec::Scripted, seed: 5 })
}

async fn execute(objects: &Objects, task: Task) -> Verdict {
    let trainer = TrainShard::new(VersionStore::new(objects.clone()));
    trainer.execute(task, CancellationToken::new()).await
}

async fn files(objects: &Objects, task: Task) -> Vec<FileRef> {
    match execute(objects, task).await {
        Verdict::Done(OutcomeBody::TrainShard(done), _) => done.files,
        other => panic!("{other:?}"),
    }
}

/// Commits a version; gives its hash.
async fn commit(objects: &Objects, version: u64, files: Vec<FileRef>) -> Sha {
    let (batch, metrics) = (None, BTreeMap::new());
    let version = PolicyVersion(version);
    let manifest =
        Manifest { run: run(), version, parent: None, batch, config: Sha::of(b""), files, metrics };
    let bytes = Bytes::from(manifest.to_json());
    objects.put(&paths::manifest(&run(), version), bytes.clone()).await.unwrap();
    Sha::of(&bytes)
}

async fn batch(objects: &Objects, manifest: Sha, base: u64, seed: u64) -> BlobRef {
    let batch = Batch {
        run: run(),
        base: PolicyVersion(base),
        manifest,
        config: Sha::of(b""),
        seed,
        temperature: 1.0,
        sample_below: None,
        groups: Vec::new(),
    };
    objects.put_blob(&run(), encode(&batch)).await.unwrap()
}

fn step(base: u64, manifest: Sha, batch: BlobRef) -> Task {
    let base = PolicyVersion(base);
    task(
        base.0 + 1,
        1,
        TrainWork::Step {
            base,
            manifest,
            batch,
            algorithm: Box::default(),
            checkpoint: true,
            delta: false,
            reference: None,
        },
    )
}

#[tokio::test]
async fn a_step_follows_from_base_and_batch_alone() {
    let objects = Objects::memory();
    let zero = files(&objects, initialise(1)).await;
    assert_eq!(zero, files(&objects, initialise(1)).await, "another worker makes the same version 0");
    for file in &zero {
        assert!(objects.has_blob(&run(), &file.blob).await.unwrap(), "{} is stored first", file.name);
    }
    let sha = commit(&objects, 0, zero).await;
    let one = files(&objects, step(0, sha, batch(&objects, sha, 0, 1).await)).await;
    assert_eq!(one, files(&objects, step(0, sha, batch(&objects, sha, 0, 1).await)).await);
    assert_ne!(one, files(&objects, step(0, sha, batch(&objects, sha, 0, 2).await)).await);

    // A trainer that keeps its state comes to the same as one that starts from the files.
    let kept = TrainShard::new(VersionStore::new(objects.clone()));
    let sha_one = commit(&objects, 1, one).await;
    let second = step(1, sha_one, batch(&objects, sha_one, 1, 1).await);
    for task in [step(0, sha, batch(&objects, sha, 0, 1).await), second.clone()] {
        let verdict = kept.execute(task, CancellationToken::new()).await;
        assert!(matches!(verdict, Verdict::Done(..)), "{verdict:?}");
    }
    let again = kept.execute(second.clone(), CancellationToken::new()).await;
    assert_eq!(again, execute(&objects, second).await);
}

#[tokio::test]
async fn unchanged_files_carry_over_from_version_to_version() {
    let objects = Objects::memory();
    let mut zero = files(&objects, initialise(1)).await;
    let file = |name: &str, blob| FileRef::whole(name, blob);
    // Not in the store: it is named, and neither read nor written.
    let tokenizer = file("tokenizer.json", BlobRef::of(b"large"));
    let optimizer = file("optimizer-0-of-2.safetensors", BlobRef::of(b"of version 0"));
    zero.extend([tokenizer.clone(), optimizer.clone()]);
    let sha = commit(&objects, 0, zero.clone()).await;
    let one = files(&objects, step(0, sha, batch(&objects, sha, 0, 1).await)).await;
    assert!(one.contains(&tokenizer), "{one:?}");
    assert!(!one.contains(&optimizer), "{one:?}");
    let names = |files: &[FileRef]| -> Vec<String> {
        let mut names: Vec<String> = files.iter().map(|file| file.name.clone()).collect();
        names.sort_unstable();
        names.retain(|name| !is_for_training(name));
        names
    };
    assert_eq!(names(&one), names(&zero), "each is there once");
}

#[tokio::test]
async fn an_untrainable_batch_is_poison() {
    let objects = Objects::memory();
    let zero = files(&objects, initialise(1)).await;
    let sha = commit(&objects, 0, zero).await;
    let garbage = objects.put_blob(&run(), Bytes::from_static(b"garbage")).await.unwrap();
    let of_other_weights = batch(&objects, Sha::of(b"other"), 0, 1).await;
    let of_other_base = batch(&objects, sha, 4, 1).await;
    let mut nowhere = step(0, sha, batch(&objects, sha, 0, 1).await);
    if let TaskBody::TrainShard(shard) = &mut nowhere.body {
        shard.world = 0;
    }
    for (why, task) in [
        ("rank=0 is not below world=0", nowhere),
        ("failed to decode batch", step(0, sha, garbage)),
        ("other weights", step(0, sha, of_other_weights)),
        ("base=v4", step(0, sha, of_other_base)),
    ] {
        match execute(&objects, task).await {
            Verdict::Poison(reason) => assert!(reason.contains(why), "{why}: {reason}"),
            other => panic!("{why}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_missing_batch_is_fetched_again() {
    let objects = Objects::memory();
    let zero = files(&objects, initialise(1)).await;
    let sha = commit(&objects, 0, zero).await;
    match execute(&objects, step(0, sha, BlobRef::of(b"not here yet"))).await {
        Verdict::RetryAfter(_, reason) => assert!(reason.contains("there is none"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_step_on_anothers_version_is_passed_on_and_one_on_its_own_is_not() {
    let objects = Objects::memory();
    let zero = files(&objects, initialise(1)).await;
    let sha = commit(&objects, 0, zero).await;
    let batch_of = async |sha, base| step(base, sha, batch(&objects, sha, base, 1).await);
    let first = batch_of(sha, 0).await;
    let [one, two] = [(); 2].map(|()| TrainShard::new(VersionStore::new(objects.clone())));
    assert!(!one.passes_on(&first), "nobody has state of version 0");
    let made = match one.execute(first.clone(), CancellationToken::new()).await {
        Verdict::Done(OutcomeBody::TrainShard(done), _) => done.files,
        other => panic!("{other:?}"),
    };
    let second = batch_of(commit(&objects, 1, made).await, 1).await;
    assert!(two.passes_on(&second) && !one.passes_on(&second));
    assert!(one.passes_on(&batch_of(sha, 2).await), "it has no state of version 2");
    let mut of_two = second.clone();
    if let TaskBody::TrainShard(shard) = &mut of_two.body {
        shard.world = 2;
    }
    assert!(!two.passes_on(&of_two), "ranks are assigned");
    // It executes the step all the same once it gets it, and then has the state.
    assert!(matches!(two.execute(second.clone(), CancellationToken::new()).await, Verdict::Done(..)));
    let of_another_run = Task { run: "other".parse().unwrap(), ..batch_of(sha, 2).await };
    assert!(!two.passes_on(&batch_of(sha, 2).await) && two.passes_on(&of_another_run));
}

#[cfg(not(feature = "torch"))]
#[tokio::test]
async fn a_build_without_torch_says_so_and_leaves_the_step_to_others() {
    let model = r#"{"kind": "decoder", "vocabulary": 68}"#;
    let work = TrainWork::Initialise { model: serde_json::from_str(model).unwrap(), seed: 1 };
    match execute(&Objects::memory(), task(0, 1, work)).await {
        Verdict::RetryAfter(delay, reason) => {
            assert!(reason.contains("--features torch"), "{reason}");
            assert!(delay >= Duration::from_secs(1));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn weights_become_changes_where_the_task_allows_it_and_a_critic_never_does() {
    let objects = Objects::memory();
    let trainer = TrainShard::new(VersionStore::new(objects.clone()));
    let before: Bytes = (0..20_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut after = before.to_vec();
    after[4_000] ^= 1;
    let after = Bytes::from(after);
    let names = [millrace_policy::MODEL_FILE, millrace_policy::CRITIC_FILE];
    let trained = |content: &Bytes| Trained {
        files: names.map(|name| (name.to_owned(), content.clone())).into(),
        metrics: BTreeMap::new(),
    };
    let zero = trainer.store(&run(), trained(&before), Vec::new(), true).await.unwrap().files;
    assert!(zero.iter().all(|file| file.delta.is_none()), "there is nothing to start from: {zero:?}");
    for may_delta in [false, true] {
        let one = trainer.store(&run(), trained(&after), zero.clone(), may_delta).await.unwrap().files;
        assert_eq!(one.len(), 2, "each is there once: {one:?}");
        for file in &one {
            let expected = may_delta && file.name == millrace_policy::MODEL_FILE;
            assert_eq!(file.delta.is_some(), expected, "{file:?}");
            assert_eq!(objects.get_file(&run(), file).await.unwrap(), after);
        }
    }
}
