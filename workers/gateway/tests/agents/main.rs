//! Agents that are programs, played step by step as the fold would, without a queue.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../src/testing.rs"]
mod testing;
mod sandbox;
mod network;
mod clients;
mod world;

use std::time::Duration;

use millrace_gateway::{BeginError, Step};
use millrace_schemas::RolloutId;
use serde_json::json;
use testing::{tokens, words};
use world::{World, done, lost, processes_with, until};

#[tokio::test]
async fn an_agent_plays_a_rollout_and_is_scored_by_files_that_it_never_saw() {
    let world = World::start(8).await;
    let agent = "seen = os.listdir('.') + os.listdir('src')\n\
                 first = ask([user('hi')])\n\
                 second = ask([user('hi'), first, user('and?')])\n\
                 open('answer', 'w').write(first['content'] + second['content'] + str('check.py' in seen))\n\
                 sys.exit(3)";
    let row = json!({
        "files": { "agent.py": world.agent(agent), "src/a.py": "x" },
        "reward_files": { "tests/check.py": "import sys; print('noise'); print(0.5 if open('answer').read() == 'onetwoFalse' else 0); print('FAILED', file=sys.stderr)" },
    });
    let session = world.begin(&json!({ "reward": ["python3", "tests/check.py"] }), row).unwrap();
    let first = done(session.step(0, 0, &[]).await);
    assert_eq!(words(&first.observation), "<user>hi$<assistant>");
    assert!(!first.done);
    let second = done(session.step(1, 1, &tokens("one$")).await);
    assert_eq!(words(&second.observation), "<user>and?$<assistant>");
    // A step that is delivered again gets the same.
    assert_eq!(done(session.step(1, 1, &tokens("one$")).await), second);
    assert_eq!(done(session.step(0, 0, &[]).await), first);
    assert!(lost(session.step(1, 1, &tokens("two$")).await).contains("other tokens"));
    assert!(lost(session.step(3, 3, &tokens("two$")).await).contains("came after"));
    let last = done(session.step(2, 2, &tokens("two$")).await);
    assert!(last.done && !last.success && last.reward == 0.5, "{last:?}");
    assert_eq!(done(session.step(2, 2, &tokens("two$")).await), last);
    assert!(last.said[0].text.contains("exit code 3"), "{last:?}");
}

#[tokio::test]
async fn a_large_call_is_answered_as_any_other() {
    let world = World::start(1).await;
    let agent = "first = ask([user('a' * 70_000)])\nask([user('a' * 70_000), first, user('b' * 70_000)])";
    let row = json!({ "files": { "agent.py": world.agent(agent) } });
    let session = world.begin(&json!({ "context_tokens": 200_000, "max_turns": 2 }), row).unwrap();
    let said = |letter: &str| format!("<user>{}$<assistant>", letter.repeat(70_000));
    let first = done(session.step(0, 0, &[]).await);
    assert!(words(&first.observation) == said("a"));
    let second = done(session.step(1, 1, &tokens("one$")).await);
    assert!(words(&second.observation) == said("b"));
    assert!(done(session.step(2, 2, &tokens("two$")).await).done);
}

#[tokio::test]
async fn another_attempt_gets_the_place_of_the_one_before() {
    let world = World::start(1).await;
    let row = json!({ "files": { "agent.py": world.agent("ask([user('hi')])") } });
    let rollout = |attempt| RolloutId { group: 0, index: 0, attempt };
    let begin = |attempt| world.attempt(rollout(attempt), &json!({}), row.clone());
    let first = begin(0).unwrap();
    // It waits for its turn, which never comes: the rollout was begun anew.
    done(first.step(0, 0, &[]).await);
    until("the second attempt has a place", || begin(1).is_ok()).await;
    assert!(lost(first.step(1, 1, &tokens("late$")).await).contains("no longer needs"));
    done(begin(1).unwrap().step(0, 0, &[]).await);
    assert_eq!(world.begin(&json!({}), row.clone()).err(), Some(BeginError::Full(1)));
}

#[tokio::test]
async fn calls_are_refused_with_the_status_that_clients_know() {
    let world = World::start(8).await;
    let agent = "report('key', status([user('a')], key='mr-wrong'))\n\
                 report('path', status([user('a')], path='/v1/embeddings'))\n\
                 report('json', status(None))\n\
                 report('n', status([user('a')], n=2))\n\
                 report('long', status([user('a' * 200)]))\n\
                 report('large', status([user('a' * 200_000)]))\n\
                 first = ask([user('a')])\n\
                 report('fork', status([user('b')]))\n\
                 ask([user('a'), first, user('c')])\n\
                 report('over', status([user('d')]))\n\
                 report('models', urllib.request.urlopen(request('/v1/models', None)).status)";
    let spec = json!({ "max_turns": 2, "context_tokens": 100 });
    let session = world.begin(&spec, json!({ "files": { "agent.py": world.agent(agent) } })).unwrap();
    done(session.step(0, 0, &[]).await);
    done(session.step(1, 1, &tokens("b$")).await);
    assert!(done(session.step(2, 2, &tokens("e$")).await).done);
    let reports = world.reports();
    let statuses = [
        ("key", 401),
        ("path", 404),
        ("json", 400),
        ("n", 400),
        ("long", 400),
        ("large", 400),
        ("fork", 409),
        ("over", 410),
        ("models", 200),
    ];
    for (what, status) in statuses {
        assert_eq!(reports[what], status, "{what}: {reports}");
    }
}

#[tokio::test]
async fn parallel_calls_are_answered_one_after_another_and_a_lost_answer_is_given_again() {
    let world = World::start(8).await;
    let agent = "import threading\n\
                 def impatient():\n    try:\n        urllib.request.urlopen(request('/v1/chat/completions', body([user('a')])), timeout=0.3)\n    except Exception: report('gave_up', 1)\n\
                 impatient()\n\
                 answers = []\n\
                 both = [threading.Thread(target=lambda: answers.append(ask([user('a')])['content'])) for _ in range(2)]\n\
                 [t.start() for t in both]; [t.join() for t in both]\n\
                 report('same', answers == ['b', 'b'])";
    let session = world.begin(&json!({}), json!({ "files": { "agent.py": world.agent(agent) } })).unwrap();
    done(session.step(0, 0, &[]).await);
    until("the first client gives up", || world.reports()["gave_up"] == 1).await;
    assert!(done(session.step(1, 1, &tokens("b$")).await).done);
    assert_eq!(world.reports()["same"], true, "{}", world.reports());
}

#[tokio::test]
async fn an_agent_may_ask_for_several_answers_and_go_on_after_one() {
    let world = World::start(8).await;
    let agent = "both = json.load(urllib.request.urlopen(request('/v1/chat/completions', body([user('a')], n=2))))\n\
                 both = [choice['message'] for choice in both['choices']]\n\
                 last = ask([user('a'), both[0], user('go on')])\n\
                 report('said', [m['content'] for m in both + [last]])\n\
                 report('more', status([user('a')], n=3))";
    let spec = json!({ "forks": "separate", "max_turns": 4 });
    let session = world.begin(&spec, json!({ "files": { "agent.py": world.agent(agent) } })).unwrap();
    let first = done(session.step(0, 0, &[]).await);
    let second = done(session.step(1, 1, &tokens("b$")).await);
    assert_eq!((words(&first.observation), first.follows), ("<user>a$<assistant>".to_owned(), None));
    assert_eq!((second.observation, second.follows), (first.observation, Some(0)));
    let third = done(session.step(2, 2, &tokens("c$")).await);
    assert_eq!((words(&third.observation), third.follows), ("<user>go on$<assistant>".to_owned(), Some(1)));
    assert!(done(session.step(3, 3, &tokens("d$")).await).done);
    let reports = world.reports();
    assert_eq!((&reports["said"], &reports["more"]), (&json!(["b", "c", "d"]), &json!(410)), "{reports}");
}

/// Lets a step come to where it waits.
async fn assert_waits(step: &mut (impl Future<Output = Step> + Unpin)) {
    tokio::select! {
        biased;
        led = step => panic!("it does not wait: {led:?}"),
        () = std::future::ready(()) => {}
    }
}

#[tokio::test]
async fn calls_side_by_side_do_not_wait_for_each_others_turns() {
    let world = World::start(8).await;
    // Three sub-agents at once, each of two calls; the main agent's call comes after them.
    let agent = "import threading\n\
                 told = {}\n\
                 def sub(name):\n    first = ask([user(name)]); told[name] = [first['content'], ask([user(name), first, user('on')])['content']]\n\
                 subs = [threading.Thread(target=sub, args=(name,)) for name in 'xyz']\n\
                 [t.start() for t in subs]; [t.join() for t in subs]\n\
                 report('told', told)\n\
                 report('main', ask([user('main')])['content'])";
    let spec = json!({ "forks": "separate", "max_turns": 7, "parallel_calls": 3 });
    let session = world.begin(&spec, json!({ "files": { "agent.py": world.agent(agent) } })).unwrap();
    // All three calls come without a turn. A call's number is that of its step, and 1.
    let mut calls = Vec::new();
    for step in 0..3 {
        calls.push(words(&done(session.step(step, 0, &[]).await).observation));
    }
    let call_of = |name: &str| 1 + calls.iter().position(|call| call.contains(name)).unwrap() as u32;
    // z goes on and ends while the turns of the others are sampled.
    let (x, y, z) = (call_of("<user>x"), call_of("<user>y"), call_of("<user>z"));
    let on = done(session.step(3, z, &tokens("z1$")).await);
    assert_eq!(
        (words(&on.observation), on.follows),
        ("<user>on$<assistant>".to_owned(), (z < 3).then_some(z))
    );
    // A step waits, and one that hands over a turn takes its place.
    let mut waits = Box::pin(session.step(4, 0, &[]));
    assert_waits(&mut waits).await;
    let on = done(session.step(5, x, &tokens("x1$")).await);
    let waits = done(waits.await);
    assert!(waits.observation.is_empty() && !waits.done, "{waits:?}");
    assert_eq!((words(&on.observation), on.follows), ("<user>on$<assistant>".to_owned(), Some(x)));
    assert_eq!(words(&done(session.step(6, y, &tokens("y1$")).await).observation), "<user>on$<assistant>");
    // The last turns come in another order than their calls; the main agent asks when all are there.
    let (y2, z2) = (tokens("y2$"), tokens("z2$"));
    let (mut first, mut second) = (Box::pin(session.step(7, 7, &y2)), Box::pin(session.step(8, 4, &z2)));
    assert_waits(&mut first).await;
    assert_waits(&mut second).await;
    let main = done(session.step(9, 6, &tokens("x2$")).await);
    assert!(done(first.await).observation.is_empty() && done(second.await).observation.is_empty());
    assert_eq!((words(&main.observation), main.follows), ("<user>main$<assistant>".to_owned(), Some(0)));
    let end = done(session.step(10, 10, &tokens("m$")).await);
    assert!(end.done && end.reward == 1.0, "{end:?}");
    let reports = world.reports();
    assert_eq!(reports["told"], json!({ "x": ["x1", "x2"], "y": ["y1", "y2"], "z": ["z1", "z2"] }));
    assert_eq!(reports["main"], "m");
}

#[tokio::test]
async fn no_process_of_an_agent_outlives_it() {
    let world = World::start(8).await;
    // A process in a session of its own, whose parent is gone.
    let daemon = format!(
        "subprocess.Popen(['setsid', 'sh', '-c', 'sleep 600 & sleep 600; : {}'])\nask([user('a')])\n",
        world.mark
    );
    let files = |agent: &str| json!({ "files": { "agent.py": world.agent(agent) } });
    // It ends by itself; it is not needed any more; its worker goes away.
    let session = world.begin(&json!({}), files(&daemon)).unwrap();
    done(session.step(0, 0, &[]).await);
    until("the daemon runs", || !processes_with(&world.mark).is_empty()).await;
    assert!(done(session.step(1, 1, &tokens("b$")).await).done);
    until("all are gone after the exit", || processes_with(&world.mark).is_empty()).await;

    let row = files(&daemon);
    world.ends_with_run_and_worker(row).await;
}

#[tokio::test]
async fn what_an_agent_does_is_a_result_and_what_breaks_around_it_is_none() {
    let world = World::start(8).await;
    let files = |agent: &str| json!({ "files": { "agent.py": world.agent(agent) } });
    let play = async |spec: serde_json::Value, agent: &str| {
        let session = world.begin(&spec, files(agent)).unwrap();
        match session.step(0, 0, &[]).await {
            Step::Done(first) if !first.done => session.step(1, 1, &tokens("b$")).await,
            other => other,
        }
    };
    let ask = "ask([user('a')])\n";
    // Results: a crash, a signal, no end within its own time, a reward that fails or hangs.
    for (spec, after, reward) in [
        (json!({}), "raise SystemExit(1)", 1.0),
        (json!({}), "os.kill(os.getpid(), 9)", 1.0),
        (json!({ "call_ms": 4_000 }), "import time; time.sleep(600)", 1.0),
        (json!({ "reward": ["false"] }), "", 0.0),
        (json!({ "reward": ["sh", "-c", "echo 1.0; exit 1"] }), "", 0.0),
        (json!({ "reward": ["sleep", "600"], "reward_ms": 200 }), "", 0.0),
    ] {
        let last = done(play(spec.clone(), &format!("{ask}{after}")).await);
        assert!(last.done && last.reward == reward, "{spec} {after}: {last:?}");
    }
    // None: no call at all, no program, no reward's program, a model that is away.
    for (spec, agent, why) in [
        (json!({}), "print('usage: agent'); sys.exit(2)", "made no call: exit code 2"),
        (json!({ "call_ms": 300 }), "import time; time.sleep(600)", "made no call within call_ms"),
        (json!({ "command": ["no-such-agent"] }), "", "no-such-agent"),
        (json!({ "reward": ["no-such-reward"] }), ask, "no-such-reward"),
    ] {
        match play(spec.clone(), agent).await {
            Step::Impossible(reason) => assert!(reason.contains(why), "{spec}: {reason}"),
            other => panic!("{spec}: {other:?}"),
        }
    }
    let session = world.begin(&json!({ "idle_ms": 300 }), files(ask)).unwrap();
    done(session.step(0, 0, &[]).await);
    until("the agent has waited too long", || session.is_over()).await;
    assert!(lost(session.step(1, 1, &tokens("b$")).await).contains("idle_ms"));
}

#[tokio::test]
async fn time_in_which_an_agent_waits_for_the_model_is_not_its_own() {
    let world = World::start(8).await;
    let agent = "first = ask([user('a')])\nask([user('a'), first, user('c')])";
    let row = json!({ "files": { "agent.py": world.agent(agent) } });
    let session = world.begin(&json!({ "time_ms": 5_000, "call_ms": 4_000 }), row).unwrap();
    done(session.step(0, 0, &[]).await);
    // More than all of its time.
    tokio::time::sleep(Duration::from_millis(5_100)).await;
    assert!(!done(session.step(1, 1, &tokens("b$")).await).done);
}

#[tokio::test]
async fn a_worker_hosts_as_many_agents_as_it_may() {
    let world = World::start(1).await;
    let row = json!({ "files": { "agent.py": world.agent("ask([user('a')])") } });
    let session = world.begin(&json!({}), row.clone()).unwrap();
    assert!(world.begin(&json!({}), row.clone()).err().unwrap().to_string().contains("1 agents already"));
    done(session.step(0, 0, &[]).await);
    assert!(done(session.step(1, 1, &tokens("b$")).await).done);
    world.begin(&json!({}), row).unwrap();
}
