//! What an agent in a sandbox can do, and what it cannot.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::json;

use super::testing::{tokens, words};
use super::world::{World, done, sandbox};
use millrace_gateway::{Sandboxed, Step};

/// What an agent tells us, it tells the model.
pub(crate) const TELL: &str = "def tell(what): ask([user(str(what))])\n";

/// Plays an agent of one call; what it told, and the end.
pub(crate) async fn told(
    world: &World,
    settings: &serde_json::Value,
    files: serde_json::Value,
) -> (String, millrace_schemas::env_step::EnvStepDone) {
    let session = world.begin(settings, files).unwrap();
    let first = match session.step(0, 0, &[]).await {
        Step::Done(first) => words(&first.observation),
        other => panic!("{other:?}"),
    };
    let told = first.trim_start_matches("<user>").trim_end_matches("$<assistant>").to_owned();
    (told, done(session.step(1, 1, &tokens("b$")).await))
}

#[tokio::test]
async fn an_agent_plays_in_a_sandbox_and_sees_nothing_of_its_worker() {
    let world = World::sandboxed(Vec::new()).await;
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("secret"), world.mark.as_bytes()).unwrap();
    std::fs::set_permissions(home.path(), PermissionsExt::from_mode(0o755)).unwrap();
    // Open to every user of this machine, and on its loopback.
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ports = [server.local_addr().unwrap().port(), world.agents.address().port()];
    let agent = format!(
        "import glob, socket\n{TELL}\
         def reached(address):\n    try: socket.create_connection(address, 3); return True\n    except OSError: return False\n\
         net = [a for a in [('127.0.0.1', {}), ('127.0.0.1', {}), ('1.1.1.1', 53), ('169.254.169.254', 80)] if reached(a)]\n\
         environ = b''.join(open(f, 'rb').read() for f in glob.glob('/proc/[0-9]*/environ') if os.access(f, os.R_OK))\n\
         lines = b''.join(open(f, 'rb').read() for f in glob.glob('/proc/[0-9]*/cmdline'))\n\
         own = {{'PATH', 'HOME', 'TMPDIR', 'LANG', 'USER', 'LOGNAME', 'SHELL', 'TERM', 'REPORTS', 'LC_CTYPE'}}\n\
         names = [n for n in os.environ if n not in own and not n.startswith(('OPENAI_', 'ANTHROPIC_', 'MILLRACE_'))]\n\
         seen = [p for p in [{:?}, {:?}, '/root', '/var/lib', '/etc/shadow', '/sys'] if os.path.exists(p)]\n\
         tell([net, names, b'CARGO' in environ + lines, seen, os.getuid(), os.getcwd(), sorted(os.listdir('.')), os.environ['OPENAI_BASE_URL']])",
        ports[0],
        ports[1],
        home.path(),
        env!("CARGO_MANIFEST_DIR")
    );
    let row = json!({
        "files": { "agent.py": world.agent(&agent) },
        "reward_files": { "deep/check.py": "import os; print(0.5 if os.path.exists('agent.py') else 0)" },
    });
    let (told, last) = told(&world, &json!({ "reward": ["python3", "deep/check.py"] }), row).await;
    let expected = "[[], [], False, [], 1000, '/home/user', ['agent.py'], 'http://127.0.0.1:4180/v1']";
    assert_eq!((told.as_str(), last.reward), (expected, 0.5), "{last:?}");
}

#[tokio::test]
async fn what_an_agent_leaves_behind_neither_sees_nor_changes_its_reward() {
    let world = World::sandboxed(Vec::new()).await;
    // In sessions of their own, deaf to signals, many times: they replace the check as soon as it is
    // there.
    let hostile = "import signal\n\
        for _ in range(8):\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork(): os._exit(0)\n        for s in range(1, 65):\n            try: signal.signal(s, signal.SIG_IGN)\n            except (OSError, ValueError): pass\n        while True:\n            if os.path.isdir('tests'):\n                os.rename('tests', 'seen'); os.mkdir('tests'); open('tests/check.py', 'w').write('print(1)')\n";
    let links = "os.symlink('/usr', 'tests2'); os.mkdir('check2.py'); open('check2.py/x', 'w')\n";
    let agent = format!("{TELL}tell('a')\n{hostile}{links}");
    let check = "import os; print(0.25 if not os.path.exists('seen') else 1)";
    let row = json!({
        "files": { "agent.py": world.agent(&agent) },
        "reward_files": { "tests/check.py": check, "tests2/check.py": check, "check2.py": check },
    });
    let spec = json!({ "reward": ["sh", "-c", "sleep 0.2; python3 tests2/check.py && python3 check2.py && python3 tests/check.py"] });
    assert_eq!(told(&world, &spec, row).await.1.reward, 0.25);
    // An agent that makes its own scoring impossible has no success by it, and no other try.
    for left in [
        "os.chmod('.', 0)",
        "os.mkdir('tests'); os.mkdir('tests/check.py'); open('tests/check.py/x', 'w'); os.chmod('tests/check.py', 0)",
    ] {
        let files = json!({ "agent.py": world.agent(&format!("{TELL}tell('a')\n{left}")) });
        let row = json!({ "files": files, "reward_files": { "tests/check.py": "print(1)" } });
        let last = told(&world, &json!({ "reward": ["python3", "tests/check.py"] }), row).await.1;
        assert!(last.done && last.reward == 0.0, "{left}: {last:?}");
    }
    let files = json!({ "agent.py": world.agent(&format!("{TELL}tell('a')\nos.chmod('.', 0)")) });
    let last = told(&world, &json!({ "reward": ["true"] }), json!({ "files": files })).await.1;
    assert!(last.done && last.reward == 0.0, "{last:?}");
}

/// What it left knows the key, and runs in its judge.
#[tokio::test]
async fn the_model_answers_no_call_while_an_agent_is_scored() {
    let world = World::sandboxed(Vec::new()).await;
    let agent = format!("{TELL}tell('a')\nopen('key', 'w').write(os.environ['OPENAI_API_KEY'])");
    let check = "import json, urllib.error, urllib.request\n\
        body = json.dumps({'model': 'm', 'messages': [{'role': 'user', 'content': 'help'}]}).encode()\n\
        head = {'Authorization': 'Bearer ' + open('key').read(), 'Content-Type': 'application/json'}\n\
        call = urllib.request.Request('http://127.0.0.1:4180/v1/chat/completions', body, head)\n\
        try: urllib.request.urlopen(call, timeout=20); print(0)\n\
        except urllib.error.HTTPError as error: print(0.75 if error.code == 410 else 0)\n";
    let row = json!({
        "files": { "agent.py": world.agent(&agent) },
        "reward_files": { "check.py": check },
    });
    let last = told(&world, &json!({ "reward": ["python3", "check.py"] }), row).await.1;
    assert!(last.done && last.reward == 0.75, "{last:?}");
}

#[tokio::test]
async fn no_process_of_a_sandboxed_agent_outlives_its_session() {
    let world = World::sandboxed(Vec::new()).await;
    let daemon = format!(
        "subprocess.Popen(['setsid', 'sh', '-c', 'sleep 600 & sleep 600; : {}'])\nask([user('a')])\nimport time; time.sleep(600)",
        world.mark
    );
    let row = json!({ "files": { "agent.py": world.agent(&daemon) } });
    // It is not needed any more; its worker goes away.
    world.ends_with_run_and_worker(row).await;
}

#[tokio::test]
async fn a_sandboxed_agent_has_the_results_of_any_other() {
    let world = World::sandboxed(Vec::new()).await;
    let ask = "ask([user('a')])\n";
    let row = |agent: &str| json!({ "files": { "agent.py": world.agent(agent) } });
    for (spec, after, reward) in [
        (json!({}), "raise SystemExit(1)", 1.0),
        (json!({}), "os.kill(os.getpid(), 9)", 1.0),
        (json!({ "call_ms": 4_000 }), "import time; time.sleep(600)", 1.0),
        (json!({ "reward": ["sleep", "600"], "reward_ms": 200 }), "", 0.0),
        (json!({ "reward": ["./gone.sh"] }), "", 0.0),
        // Judges report on their errors, in any order with their output.
        (json!({ "reward": ["sh", "-c", "echo 0.5; echo 'FAILED (failures=1)' >&2"] }), "", 0.5),
    ] {
        let last = told(&world, &spec, row(&format!("{ask}{after}"))).await.1;
        assert!(last.done && last.reward == reward, "{spec} {after}: {last:?}");
    }
    for (spec, agent, why) in [
        (json!({}), "print('usage: agent'); sys.exit(2)", "made no call: exit code 2"),
        (json!({}), "print('usage: agent'); sys.exit(2)", "usage: agent"),
        (json!({ "command": ["no-such-agent"] }), "", "no-such-agent"),
        (json!({ "command": ["/var/empty/agent"] }), "", "/var/empty/agent"),
    ] {
        match world.begin(&spec, row(agent)).unwrap().step(0, 0, &[]).await {
            Step::Impossible(reason) => assert!(reason.contains(why), "{spec}: {reason}"),
            other => panic!("{spec}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn folders_that_are_shown_are_there_to_read() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::create_dir(folder.path().join("bin")).unwrap();
    let (draft, tool) = (folder.path().join("draft"), folder.path().join("bin/shown-tool"));
    std::fs::write(&draft, "#!/bin/sh\necho shown\n").unwrap();
    // By another process: a file that this one wrote is busy while a fork of another thread has it open, too.
    assert!(Command::new("install").arg("-m755").args([&draft, &tool]).status().unwrap().success());
    let world = World::sandboxed(vec![folder.path().to_owned()]).await;
    let agent = format!(
        "{TELL}ran = subprocess.run(['shown-tool'], capture_output=True, text=True).stdout.strip()\n\
         try: open({:?}, 'w'); ran += ' and written'\nexcept OSError: pass\ntell(ran)",
        folder.path().join("bin/planted")
    );
    let row = json!({ "files": { "agent.py": world.agent(&agent) } });
    assert_eq!(told(&world, &json!({}), row).await.0, "shown");
    // What cannot be shown is said when the worker starts.
    let missing = Sandboxed::open(sandbox(), vec!["/no/such/folder".into()]).await.unwrap_err().to_string();
    assert!(missing.contains("/no/such/folder"), "{missing}");
    let missing = Sandboxed::open("/no/such/program".into(), Vec::new()).await.unwrap_err().to_string();
    assert!(missing.contains("/no/such/program"), "{missing}");
}
