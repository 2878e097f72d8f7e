//! Clients and an agent of other people, unmodified, in a sandbox, with turns that were prepared.

use std::path::Path;

use serde_json::{Value, json};

use super::testing::{tokens, words};
use super::world::{World, done};

/// The environment with them, at its own place whatever the working folder.
fn environment() -> std::path::PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let folder = root.join("target/agents");
    assert!(
        folder.join("bin/mini").exists(),
        "the clients are missing: `make sdks` puts them into {}",
        folder.display()
    );
    folder
}

/// What the agent asked before each turn, and its score with the reason.
async fn played(world: &World, settings: &Value, row: Value, turns: &[&str]) -> (Vec<String>, f64, String) {
    let session = world.begin(settings, row).unwrap();
    let (mut seen, mut step, mut turn) = (Vec::new(), session.step(0, 0, &[]).await, 0_u32);
    loop {
        let next = done(step);
        if next.done {
            return (seen, next.reward, next.said[0].text.clone());
        }
        seen.push(words(&next.observation));
        let text = turns.get(turn as usize).unwrap_or_else(|| panic!("a turn too many: {seen:#?}"));
        turn += 1;
        step = session.step(turn, turn, &tokens(text)).await;
    }
}

#[tokio::test]
async fn unmodified_clients_hold_a_conversation_in_each_dialect() {
    let world = World::sandboxed(vec![environment()]).await;
    let call = |path: &str| {
        format!("<tool_call>{{\"name\": \"ls\", \"arguments\": {{\"path\": \"{path}\"}}}}</tool_call>$")
    };
    let (look, again) = (format!("I look.{}", call(".")), call("src"));
    let play = async |dialect: &str| {
        let spec = json!({
            "command": ["python3", "clients.py", dialect], "reward": ["sh", "-c", "cat verdict; grep -qx passed verdict"],
            "context_tokens": 4_000, "call_ms": 120_000,
        });
        let row = json!({ "files": { "clients.py": include_str!("clients.py") } });
        let (seen, reward, why) = played(&world, &spec, row, &["one$", "two$", &look, &again]).await;
        assert_eq!(reward, 1.0, "{dialect}: {why}: {seen:#?}");
        assert!(seen[0].starts_with("<tools>") && seen[0].ends_with("<user>hi$<assistant>"), "{seen:#?}");
        assert_eq!(seen[1..], ["<user>and?$<assistant>", "<user>look$<assistant>", "<tool>x.py$<assistant>"]);
    };
    tokio::join!(play("chat"), play("messages"), play("responses"));
}

/// A repository whose `add` subtracts, and the test that finds it.
fn calc() -> Value {
    json!({
        "files": { "calc.py": "def add(a, b):\n    return a - b\n" },
        "reward_files": { "tests/check.py": "import sys\nsys.path.insert(0, '.')\nimport calc\nprint(1.0 if calc.add(2, 3) == 5 else 0.0)\n" },
    })
}

#[tokio::test]
async fn mini_swe_agent_repairs_a_repository() {
    let world = World::sandboxed(vec![environment()]).await;
    let bash = |command: &str| {
        let call = json!({ "name": "bash", "arguments": { "command": command } });
        format!("I go on.\n<tool_call>{call}</tool_call>$")
    };
    let turns = [
        bash("cat calc.py; ls"),
        bash("sed -i 's/a - b/a + b/' calc.py && python3 -B -c 'import calc; print(calc.add(20, 22))'"),
        bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    ];
    let turns: Vec<&str> = turns.iter().map(String::as_str).collect();
    let spec = json!({
        "command": ["mini", "--yolo", "--exit-immediately", "--model", "openai/any", "--task", "{prompt}", "--output", "trajectory.json"],
        "reward": ["python3", "-B", "tests/check.py"], "context_tokens": 40_000, "call_ms": 120_000,
        "env": { "MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "LITELLM_LOCAL_MODEL_COST_MAP": "True" },
    });
    let row = calc();
    let repairs = played(&world, &spec, row.clone(), &turns);
    // The same agent that submits at once has repaired nothing.
    let gives_up = played(&world, &spec, row, &turns[2..]);
    let ((seen, reward, why), (_, nothing, why_nothing)) = tokio::join!(repairs, gives_up);
    assert_eq!((reward, seen.len()), (1.0, 3), "{why}: {seen:#?}");
    assert!(seen[0].contains("do it") && seen[1].contains("return a - b"), "{seen:#?}");
    assert!(seen[1].contains("calc.py") && !seen[1].contains("tests"), "{seen:#?}");
    assert!(seen[2].contains("42"), "{seen:#?}");
    assert_eq!(nothing, 0.0, "{why_nothing}");
}

#[tokio::test]
async fn qwen_code_repairs_a_repository() {
    let world = World::sandboxed(vec![environment()]).await;
    let call = |tool: &str, arguments: Value| {
        format!("I go on.\n<tool_call>{}</tool_call>$", json!({ "name": tool, "arguments": arguments }))
    };
    let file = "/home/user/calc.py";
    let turns = [
        call("read_file", json!({ "file_path": file })),
        call("edit", json!({ "file_path": file, "old_string": "a - b", "new_string": "a + b" })),
        call(
            "run_shell_command",
            json!({ "command": "python3 -B -c 'import calc; assert calc.add(20, 22) == 42'", "is_background": false }),
        ),
        "It adds now.$".to_owned(),
    ];
    let turns: Vec<&str> = turns.iter().map(String::as_str).collect();
    let spec = json!({
        "command": ["qwen", "--auth-type", "openai", "--yolo", "--prompt", "{prompt}"],
        "reward": ["python3", "-B", "tests/check.py"], "context_tokens": 200_000, "call_ms": 120_000,
        "env": { "OPENAI_MODEL": "any" },
    });
    let row = calc();
    let repairs = played(&world, &spec, row.clone(), &turns);
    // The same agent that answers at once has repaired nothing.
    let gives_up = played(&world, &spec, row, &turns[3..]);
    let ((seen, reward, why), (_, nothing, why_nothing)) = tokio::join!(repairs, gives_up);
    assert_eq!((reward, seen.len()), (1.0, 4), "{why}: {seen:#?}");
    assert!(seen[0].contains("do it") && seen[0].contains("run_shell_command"), "{seen:#?}");
    assert!(seen[1].contains("return a - b") && !seen[1].contains("do it"), "{seen:#?}");
    // Its exit code, not its output: on a busy machine the agent ends its reading before the output is there.
    assert!(seen[3].contains("Exit Code: 0"), "{seen:#?}");
    assert_eq!(nothing, 0.0, "{why_nothing}");
}
