//! Servers of tools: one of the official SDK, unmodified, and one that hangs, dies and lies. What goes
//! wrong with one call harms no other, and is no fault of the policy's.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use millrace_workers::Failure;
use millrace_workers::mcp::{Declared, McpArg, McpError, McpServers, ToolResult};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

mod run;

const PATIENCE: Duration = Duration::from_secs(120);
/// Time of one call.
const CALL: Duration = Duration::from_secs(10);

/// The command line of a server in this folder.
fn script(name: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workers/mcp").join(name);
    script.display().to_string()
}

/// The Python in which the official SDK is.
fn sdk() -> String {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/agents/bin/python3");
    assert!(python.is_file(), "{} is missing; run `make sdks`", python.display());
    python.display().to_string()
}

async fn start(command: &str) -> Result<McpServers, McpError> {
    let arg = McpArg { name: "s".to_owned(), command: command.to_owned() };
    timeout(PATIENCE, McpServers::start(&[arg])).await.expect("it starts or fails")
}

async fn hostile() -> McpServers {
    start(&format!("python3 {}", script("hostile.py"))).await.unwrap()
}

/// The tool `s/name`.
async fn tool(servers: &McpServers, name: &str) -> Declared {
    let mut declared = servers.declared(&[format!("s/{name}")]).await.unwrap();
    assert_eq!(declared.len(), 1);
    declared.remove(0)
}

async fn call_for(
    servers: &McpServers,
    name: &str,
    arguments: &Value,
    within: Duration,
) -> Result<ToolResult, McpError> {
    let tool = tool(servers, name).await;
    let arguments = arguments.as_object().unwrap();
    timeout(PATIENCE, tool.call(arguments, within)).await.expect("each call ends")
}

/// The text of a call that succeeds.
async fn said(servers: &McpServers, name: &str, arguments: &Value) -> String {
    let result = call_for(servers, name, arguments, CALL).await.unwrap();
    assert!(!result.is_error, "{name}: {}", result.text);
    result.text
}

async fn echoes(servers: &McpServers) {
    assert_eq!(said(servers, "echo", &json!({ "text": "still here" })).await, "still here");
}

#[tokio::test]
async fn tools_of_the_official_sdk_are_listed_and_called() {
    let servers = start(&format!("{} {}", sdk(), script("calculator.py"))).await.unwrap();
    let declared = servers.declared(&["s".to_owned()]).await.unwrap();
    let names: Vec<&str> = declared.iter().map(|declared| declared.tool().name.as_str()).collect();
    assert_eq!(names, ["add", "divide"]);
    let add = declared[0].tool();
    assert_eq!(add.description, "Adds two whole numbers.");
    assert_eq!(add.object()["function"]["parameters"]["properties"]["a"]["type"], "integer");
    assert!(add.misfit(json!({ "a": 2 }).as_object().unwrap()).is_some_and(|said| said.contains("\"b\"")));
    assert_eq!(said(&servers, "add", &json!({ "a": 20, "b": 22 })).await, "42");
    let failed = call_for(&servers, "divide", &json!({ "a": 1, "b": 0 }), CALL).await.unwrap();
    assert!(failed.is_error && failed.text.contains("Error"), "{failed:?}");
    assert_eq!(said(&servers, "divide", &json!({ "a": 1, "b": 4 })).await, "0.25");
}

#[tokio::test]
async fn a_list_of_many_pages_is_read_whole_and_again_when_it_changed() {
    let servers = hostile().await;
    let all = ["s".to_owned()];
    assert_eq!(servers.declared(&all).await.unwrap().len(), 14);
    assert_eq!(said(&servers, "../up", &json!({ "text": "a name, no path" })).await, "a name, no path");
    said(&servers, "grow", &json!({})).await;
    assert_eq!(servers.declared(&all).await.unwrap().len(), 15, "the list changed");
    // Named twice, it is there once.
    let both = ["s/echo".to_owned(), "s".to_owned()];
    assert_eq!(servers.declared(&both).await.unwrap().len(), 15);
}

#[tokio::test]
async fn what_a_run_names_and_the_worker_lacks_is_told_with_the_remedy() {
    let command = format!("python3 {}", script("hostile.py"));
    let [a, b] = ["a", "b"].map(|name| McpArg { name: name.to_owned(), command: command.clone() });
    assert!(matches!(McpServers::start(&[a.clone(), a.clone()]).await, Err(McpError::SameName(_))));
    let servers = McpServers::start(&[a, b]).await.unwrap();
    let refused = async |refs: &[&str]| {
        let refs: Vec<String> = refs.iter().map(|text| (*text).to_owned()).collect();
        Failure::from(servers.declared(&refs).await.unwrap_err())
    };
    match refused(&["files"]).await {
        Failure::Retry(_, reason) => assert!(reason.contains("--mcp files=COMMAND"), "{reason}"),
        other => panic!("another worker may have it: {other:?}"),
    }
    for (refs, words) in [
        (&["a/nope"][..], "the server's tools are: echo, hang"),
        (&["a", "b"], "two tools named \"echo\", of a and b"),
        (&["A"], "neither a server nor server/tool"),
    ] {
        match refused(refs).await {
            Failure::Impossible(reason) => assert!(reason.contains(words), "{reason}"),
            other => panic!("{refs:?}: {other:?}"),
        }
    }
    let chosen = ["a/echo".to_owned(), "b/hang".to_owned()];
    assert_eq!(servers.declared(&chosen).await.unwrap().len(), 2);
    assert!(servers.has_all(&chosen) && !servers.has_all(&["c".to_owned()]));
}

#[tokio::test]
async fn a_call_that_fails_tells_the_policy_and_harms_no_other() {
    let servers = hostile().await;
    for (name, words) in
        [("fail", "Error: it failed"), ("refuse", "Error: no such thing"), ("huge", "too long")]
    {
        let result = call_for(&servers, name, &json!({}), CALL).await.unwrap();
        assert!(result.is_error && result.text.contains(words), "{name}: {}", result.text);
        echoes(&servers).await;
    }
    assert_eq!(said(&servers, "garbage", &json!({})).await, "after garbage");
    assert_eq!(said(&servers, "big", &json!({})).await.len(), 256 * 1024, "its beginning is kept");
    echoes(&servers).await;
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_withdrawn_while_others_are_answered() {
    let servers = hostile().await;
    let within = Duration::from_millis(300);
    let arguments = json!({});
    let hangs = call_for(&servers, "hang", &arguments, within);
    let (hung, ()) = tokio::join!(hangs, echoes(&servers));
    let hung = hung.unwrap();
    assert!(hung.is_error && hung.text.contains("longer than 300 ms"), "{hung:?}");
    let cancelled: Vec<u64> = serde_json::from_str(&said(&servers, "seen", &json!({})).await).unwrap();
    assert_eq!(cancelled.len(), 1, "the server is told, and it is the same process");
}

#[tokio::test]
async fn a_server_that_stops_is_replaced_and_one_call_is_told_so() {
    let servers = hostile().await;
    let stopped = call_for(&servers, "stop", &json!({}), Duration::from_millis(300)).await.unwrap();
    assert!(stopped.is_error && stopped.text.contains("longer than"), "{stopped:?}");
    echoes(&servers).await;
}

#[tokio::test]
async fn calls_that_a_dead_server_did_not_answer_are_retried_by_the_runtime() {
    let servers = hostile().await;
    let arguments = json!({});
    let waits = call_for(&servers, "hang", &arguments, CALL);
    // Polled in this order, they are sent in this order.
    let (waited, died) = tokio::join!(waits, call_for(&servers, "die", &arguments, CALL));
    for ended in [waited, died] {
        assert_eq!(ended, Err(McpError::Ended("s".to_owned())), "no text for the policy");
    }
    echoes(&servers).await;
}

#[tokio::test]
async fn a_server_that_dies_at_each_call_backs_off() {
    let servers = start(&format!("python3 {} mortal", script("hostile.py"))).await.unwrap();
    let call = async || match servers.declared(&["s/echo".to_owned()]).await {
        Ok(declared) => {
            let arguments = json!({ "text": "" });
            declared[0].call(arguments.as_object().unwrap(), CALL).await.unwrap_err()
        }
        Err(error) => error,
    };
    let since = Instant::now();
    for restart in 0..5 {
        assert_eq!(call().await, McpError::Ended("s".to_owned()), "restart={restart}");
    }
    // The first restart is at once, the others after 0.5, 1 and 2 s.
    assert!(since.elapsed() >= Duration::from_millis(3_500), "{:?}", since.elapsed());
}

#[tokio::test]
async fn a_thousand_calls_at_once_each_get_their_own_answer() {
    let servers = hostile().await;
    let echo = tool(&servers, "echo").await;
    let one = async |i: usize| {
        let arguments = json!({ "text": i.to_string() });
        echo.call(arguments.as_object().unwrap(), PATIENCE).await.unwrap().text
    };
    let answers = futures::future::join_all((0..1_000).map(one)).await;
    assert!(answers.iter().enumerate().all(|(i, answer)| *answer == i.to_string()), "{answers:?}");
}

#[tokio::test]
async fn a_server_may_ping_and_gets_nothing_else_and_few_variables() {
    let servers = hostile().await;
    assert_eq!(said(&servers, "ask", &json!({})).await, "[\"result\", -32601, -32601]");
    let own = said(&servers, "environment", &json!({})).await;
    let own: Vec<String> = serde_json::from_str(&own).unwrap();
    assert!(own.contains(&"PATH".to_owned()) && own.iter().all(|name| !name.starts_with("CARGO")), "{own:?}");
    let servers = start(&format!("KEY=1 python3 {}", script("hostile.py"))).await.unwrap();
    assert!(said(&servers, "environment", &json!({})).await.contains("\"KEY\""));
}

#[tokio::test]
async fn a_server_that_cannot_be_used_is_told_at_the_start() {
    for (fault, words) in [
        ("dies", "it ended before it answered initialize"),
        ("old", "protocolVersion=\"1999-01-01\""),
        ("toolless", "no tools"),
        ("endless", "more than 1024 pages"),
        ("twice", "two tools named \"echo\""),
        ("huge", "too long"),
    ] {
        let error = start(&format!("python3 {} {fault}", script("hostile.py"))).await.unwrap_err();
        assert!(matches!(Failure::from(error.clone()), Failure::Retry(..)), "{fault}");
        let said = error.to_string();
        assert!(said.contains(words) && said.contains("MCP server s"), "{fault}: {said}");
    }
    let error = start("no-such-program-here").await.unwrap_err();
    assert!(error.to_string().contains("ended before"), "{error}");
}

#[tokio::test]
async fn a_server_ends_with_its_worker_and_all_that_it_started() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    // A shell that starts another process, and is the server.
    let command =
        format!("sh -c 'sleep 1000 & echo $! > {}; exec python3 {}'", pid.display(), script("hostile.py"));
    let servers = start(&command).await.unwrap();
    echoes(&servers).await;
    let pid = std::fs::read_to_string(&pid).unwrap();
    drop(servers);
    let since = Instant::now();
    // What is killed may stay as a zombie, whose command line is empty.
    let lives = || std::fs::read(format!("/proc/{}/cmdline", pid.trim())).is_ok_and(|line| !line.is_empty());
    while lives() {
        assert!(since.elapsed() < PATIENCE, "process {pid} outlives its server");
        sleep(Duration::from_millis(5)).await;
    }
}
