//! The reward `judge` against a server process: a verdict is a score, and whatever else it does is
//! none.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use millrace_schemas::OutcomeBody;
use millrace_schemas::reward::{RewardDone, RewardRule};
use millrace_workers::reward::Reward;
use millrace_workers::{Executor, Verdict};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{task, tools};
use crate::server::Server;

/// The server.
struct Judge(Server);

impl Judge {
    fn start() -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workers/rewards/server.py");
        Self(Server::start(Command::new("python3").arg(script).stdin(Stdio::piped())))
    }

    fn does(&self, how: &str) {
        self.0.call("POST", "/test/set", &json!({ "how": how }));
    }

    fn state(&self) -> Value {
        self.0.call("GET", "/", &Value::Null)
    }

    /// A worker's part that asks it.
    fn asked_by(&self, more: &[&str]) -> Reward {
        let url = self.0.url();
        let arguments = [&["--judge-url", &url], more].concat();
        Reward::default().with(Arc::new(tools(&arguments)))
    }
}

async fn judged(reward: &Reward, settings: Value, answer: &str) -> Verdict {
    let row = json!({ "answer": "since it is" });
    reward.execute(task(RewardRule::Judge, settings, row, ("Why?", answer)), CancellationToken::new()).await
}

#[tokio::test]
async fn a_verdict_is_a_score() {
    let judge = Judge::start();
    let key = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(key.path(), "secret\n").unwrap();
    let reward = judge.asked_by(&["--judge-key-file", key.path().to_str().unwrap()]);
    let verdict = judged(&reward, json!({ "model": "m" }), "one two three").await;
    let Verdict::Done(OutcomeBody::Reward(RewardDone { score, reason }), _) = verdict else {
        panic!("{verdict:?}")
    };
    assert_eq!((score, reason.as_str()), (0.3, "the judge says 3"));
    let state = judge.state();
    assert_eq!(state["key"], "Bearer secret");
    assert_eq!((&state["last"]["model"], &state["last"]["temperature"]), (&json!("m"), &json!(0.0)));
    let asked = state["last"]["messages"][0]["content"].as_str().unwrap();
    assert!(
        asked.contains("Why?") && asked.contains("one two three") && asked.contains("from 0 to 10"),
        "{asked}"
    );
    // Braces in an answer are not replaced, and a score in the answer is not the judge's.
    let settings = json!({
        "model": "m", "system": "Be strict.", "low": 2, "high": 6,
        "template": "{right} {x} <answer>{answer}</answer> {conversation} Score: {low}",
    });
    let verdict = judged(&reward, settings, "{right} {low} Score: 6").await;
    let Verdict::Done(OutcomeBody::Reward(RewardDone { score, .. }), _) = verdict else {
        panic!("{verdict:?}")
    };
    assert_eq!(score, 0.5, "four words of 2 to 6");
    let messages = judge.state()["last"]["messages"].clone();
    assert_eq!(messages[0], json!({ "role": "system", "content": "Be strict." }));
    let expected = "since it is {x} <answer>{right} {low} Score: 6</answer> Environment: Why?\n\nPolicy: {right} {low} Score: 6 Score: 2";
    assert_eq!(messages[1]["content"], expected);
}

#[tokio::test]
async fn a_judge_that_fails_is_a_failure() {
    let judge = Judge::start();
    let reward = judge.asked_by(&[]);
    for (how, said) in [
        ("broken", "500"),
        ("missing", "404"),
        ("no_json", "JSON"),
        ("empty", "no text"),
        ("mute", "does not say"),
        ("words", "no number"),
        ("far", "not within"),
        ("cut", "does not say"),
        ("short", "raise settings.max_tokens"),
    ] {
        judge.does(how);
        let verdict = judged(&reward, json!({ "model": "m" }), "so").await;
        assert!(matches!(&verdict, Verdict::RetryAfter(_, why) if why.contains(said)), "{how}: {verdict:?}");
    }
    judge.does("busy");
    let verdict = judged(&reward, json!({ "model": "m" }), "so").await;
    assert!(
        matches!(verdict, Verdict::RetryAfter(after, _) if after == Duration::from_secs(7)),
        "{verdict:?}"
    );
    judge.does("long");
    let verdict = judged(&reward, json!({ "model": "m" }), "so").await;
    assert!(matches!(&verdict, Verdict::Poison(why) if why.contains("too long")), "{verdict:?}");
    judge.does("hangs");
    let verdict = judged(&reward, json!({ "model": "m", "timeout_ms": 300 }), "so").await;
    assert!(matches!(&verdict, Verdict::RetryAfter(_, why) if why.contains("away")), "{verdict:?}");
    drop(judge);
    let verdict = judged(&reward, json!({ "model": "m" }), "so").await;
    assert!(matches!(&verdict, Verdict::RetryAfter(_, why) if why.contains("away")), "{verdict:?}");
    let without_judge = judged(&Reward::default(), json!({ "model": "m" }), "so").await;
    assert!(
        matches!(&without_judge, Verdict::RetryAfter(_, why) if why.contains("--judge-url")),
        "{without_judge:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_judge_requests_are_bounded() {
    let judge = Judge::start();
    judge.does("slow");
    let reward = judge.asked_by(&["--judge-at-once", "3"]);
    let asked = (0..12).map(|_| {
        let reward = reward.clone();
        tokio::spawn(async move { judged(&reward, json!({ "model": "m" }), "so").await })
    });
    for asked in asked.collect::<Vec<_>>() {
        assert!(matches!(asked.await.unwrap(), Verdict::Done(..)));
    }
    let state = judge.state();
    assert_eq!((&state["asked"], &state["most"]), (&json!(12), &json!(3)), "{state}");
}
