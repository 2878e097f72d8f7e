//! Two rewards of one rollout, each scored by the workers of its own pool, and added up by weight.

use std::collections::BTreeMap;

use millrace_queue::{Broker, JetStream, JetStreamOptions, Objects};
use millrace_schemas::blob::paths;
use millrace_schemas::envelope::decode;
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::train_shard::Batch;
use millrace_schemas::{Event, OutcomeBody, PolicyVersion, RolloutId, RunId, TaskKey};
use tokio::process::Child;

use super::support::{Coordinated, millrace_worker, stderr, until};

const STEPS: u64 = 5;
const RUN: &str = r#"
name = "weighed"
steps = 5
rewards = [{ rule = "env_return" }, { rule = "success", weight = -0.25 }]
[model]
kind = "scripted"
[environment]
name = "counter"
turns = 2
[rollout]
groups_per_step = 4
group_size = 2
[evaluate]
prompts = 0
"#;

fn worker(at: &Coordinated, id: &str, arguments: &[&str]) -> Child {
    let mut command = millrace_worker();
    command.args(["--nats", &at.url, "--objects", &at.objects, "--id", id, "--log", "off"]).args(arguments);
    command.kill_on_drop(true).spawn().unwrap()
}

/// Who scored each reward of each rollout, and how; the first outcome counts.
async fn scores(broker: &Broker) -> BTreeMap<(RolloutId, u32), (String, f64)> {
    let mut log = broker.read_log(1).await.unwrap();
    let mut scores = BTreeMap::new();
    loop {
        for logged in log.next(1000).await.unwrap() {
            let Event::Outcome(outcome) = logged.event.unwrap() else { continue };
            match (outcome.key, &outcome.body) {
                (TaskKey::Reward { rollout, reward }, OutcomeBody::Reward(done)) => {
                    scores.entry((rollout, reward)).or_insert((outcome.worker.to_string(), done.score));
                }
                (TaskKey::PublishWeights { version: STEPS, .. }, _) => return scores,
                _ => {}
            }
        }
    }
}

#[tokio::test]
async fn each_reward_has_its_own_workers_and_they_are_added_up_by_weight() {
    let at = Coordinated::start().await;
    let _workers = [
        worker(&at, "others", &["--stages", "generate,env_step,train_shard,publish_weights"]),
        worker(&at, "returns", &["--stages", "reward", "--pools", "reward/env_return"]),
        worker(&at, "goals", &["--stages", "reward", "--pools", "reward/success"]),
    ];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.toml");
    std::fs::write(&file, RUN).unwrap();
    let submitted = at.run(&["submit", &file.to_string_lossy()]).await;
    assert!(submitted.status.success(), "{}", stderr(&submitted));
    until("the run is finished", async || {
        let status = at.run(&["status", "weighed", "--json"]).await;
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).ok()?;
        (status["state"] == "finished").then_some(())
    })
    .await;

    let queue = JetStream::connect(&at.url, "test", JetStreamOptions::default()).await.unwrap();
    let broker = Broker::new(queue, Objects::open(&at.objects).unwrap());
    let scores = scores(&broker).await;
    for ((rollout, reward), (worker, _)) in &scores {
        assert_eq!(worker, ["returns", "goals"][*reward as usize], "{rollout}");
    }
    let run: RunId = "weighed".parse().unwrap();
    let mut trained = 0;
    for version in 1..=STEPS {
        let path = paths::manifest(&run, PolicyVersion(version));
        let bytes = broker.objects().get(&path).await.unwrap().unwrap();
        let manifest: Manifest = serde_json::from_slice(&bytes).unwrap();
        let blob = broker.objects().get_blob(&run, &manifest.batch.unwrap()).await.unwrap();
        let batch: Batch = decode("batch", &blob).unwrap();
        for rollout in batch.groups.iter().flat_map(|group| &group.rollouts) {
            let [returned, reached] = [0, 1].map(|reward| scores[&(rollout.id, reward)].1);
            assert_eq!(rollout.reward, returned - 0.25 * reached, "{}", rollout.id);
            trained += 1;
        }
    }
    assert_eq!(trained, STEPS * 4 * 2);
    let differ = |reward| scores.iter().any(|((_, number), (_, score))| *number == reward && *score != 0.0);
    assert!(differ(0) && differ(1), "what is 0 everywhere shows nothing: {scores:?}");
}
