use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use millrace_queue::clock::SystemClock;
use millrace_queue::{Broker, MemoryQueue, Objects};
use millrace_schemas::blob::{Sha, paths};
use millrace_schemas::dataset::Rows;
use millrace_schemas::env_step::Split;
use millrace_schemas::policy::Policy;
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::train_shard::FileRef;
use millrace_schemas::{PolicyVersion, RolloutId, TaskKey};
use serde_json::json;

use super::*;
use crate::envs::testing::{character_tokenizer, codec_of};
use crate::mcp::McpArg;
use crate::model::versions::VersionStore;
use crate::runtime::policies;

/// A template in the form of Qwen3-Coder, which writes values without types.
const TEMPLATE: &str = "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}{% for m in messages %}<{{ m.role }}>\
    {{ m.content }}{% for c in m.tool_calls %}<tool_call>{{ '\n' }}<function={{ c.function.name }}>{{ '\n' }}\
    {% for k, v in c.function.arguments | items %}<parameter={{ k }}>{{ '\n' }}{{ v }}{{ '\n' }}</parameter>{% endfor %}\
    </function></tool_call>{% endfor %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

fn run() -> RunId {
    "lake".parse().unwrap()
}

/// The files of a codec with a token for each printable character.
fn text_files() -> [(&'static str, Value); 2] {
    let tokenizer = character_tokenizer(&json!([]));
    [("tokenizer.json", tokenizer), ("tokenizer_config.json", json!({ "chat_template": TEMPLATE }))]
}

/// Commits a version that has the files of the codec alone, and announces it.
async fn commit(broker: &Broker) {
    let (mut files, version) = (Vec::new(), PolicyVersion(0));
    for (name, content) in text_files() {
        let content = Bytes::from(content.to_string());
        files
            .push(FileRef::whole(name.to_owned(), broker.objects().put_blob(&run(), content).await.unwrap()));
    }
    let (config, metrics) = (Sha::of(b""), BTreeMap::new());
    let manifest =
        Manifest { run: run(), version, parent: None, batch: None, config, files, metrics }.to_json();
    broker.objects().put(&paths::manifest(&run(), version), manifest.clone().into()).await.unwrap();
    let (manifest, floor) = (Sha::of(&manifest), version);
    let policy = Policy { version, manifest, floor, attempt: 0, partitions: 1, ended: false };
    broker.set_policy(&run(), &policy).await.unwrap();
}

/// A worker's executor, and a run's rows with the tools of `tests/workers/mcp/hostile.py`.
async fn bench() -> (EnvStep, Codec, DatasetSpec) {
    let broker = Broker::new(Arc::new(MemoryQueue::new(Arc::new(SystemClock::new()))), Objects::memory());
    let (mut table, watch) = policies(broker.clone());
    tokio::spawn(watch.run());
    commit(&broker).await;
    while !table.knows(&run()) {
        assert!(table.changed().await, "the watch goes on");
    }
    let mut spec: DatasetSpec = serde_json::from_value(json!({
        "path": "rows.jsonl", "held_out": 0, "check": "number", "max_turns": 4, "prompt_tokens": 4_000,
        "tools": ["s/echo"],
    }))
    .unwrap();
    let rows = Bytes::from_static(b"{\"prompt\": \"2 + 2?\", \"answer\": 4}\n");
    broker.objects().put_blob(&run(), rows.clone()).await.unwrap();
    spec.content = Some(Rows::read(rows, &spec).unwrap().content());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workers/mcp/hostile.py");
    let command = format!("python3 {}", script.display());
    let servers = McpServers::start(&[McpArg { name: "s".to_owned(), command }]).await.unwrap();
    let versions = VersionStore::new(broker.objects().clone());
    let datasets = Datasets::new(versions.blobs().clone());
    let env_step = EnvStep::speaking(Codecs::new(table, versions), datasets).calling(Arc::new(servers));
    let [(_, tokenizer), (_, config)] = text_files();
    (env_step, codec_of(&tokenizer, &config), spec)
}

async fn act(env_step: &EnvStep, spec: &DatasetSpec, action: EnvAction) -> EnvStepDone {
    let environment = EnvironmentSpec::Dataset(spec.clone());
    let (split, seed, row, prefix) = (Split::Train, 1, Some(0), Vec::new());
    let task = Task {
        run: run(),
        key: TaskKey::EnvStep { rollout: RolloutId { group: 0, index: 0, attempt: 0 }, turn: 1 },
        pool: "dataset_tools".parse().unwrap(),
        version: PolicyVersion(0),
        evaluate: false,
        body: TaskBody::EnvStep(EnvStepTask { environment, split, seed, row, action, prefix, answers: None }),
    };
    match env_step.execute(task, CancellationToken::new()).await {
        Verdict::Done(OutcomeBody::EnvStep(done), _) => done,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_call_without_types_gets_its_schemas_types() {
    let (env_step, codec, spec) = bench().await;
    let state = act(&env_step, &spec, EnvAction::Reset).await.state;
    for (times, shown) in [
        ("3", "<tool>hahaha<assistant>"),
        ("three", "<tool>Error: the argument \"times\" must be of type integer<assistant>"),
    ] {
        let turn = format!(
            "So.<tool_call>\n<function=echo>\n<parameter=text>\nha\n</parameter>\n<parameter=times>\n{times}\n\
             </parameter>\n</function>\n</tool_call>"
        );
        let tokens = codec.encode(&turn).unwrap();
        let done = act(&env_step, &spec, EnvAction::Step { state: state.clone(), tokens }).await;
        assert_eq!(codec.decode(&done.observation, true).unwrap(), shown);
        assert!(!done.done && done.valid, "{turn}");
    }
}
