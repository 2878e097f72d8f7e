//! Commands.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::stream::unfold;
use millrace_sandbox::End;
use millrace_sandbox::live::{Terminal, TerminalSize};
use serde_json::{Value, json};

use super::connect::timeout_ms;
use super::connect::{Code, Fault, Messages, answer, asked, asked_once, frame, last, once, stopped, stream};
use super::envd::Opened;
use super::paths::absolute;
use super::requests::{Input, Of, Pty, PtySize, Selector, SendInput, Signal, Start, StreamInput, Update};
use crate::commands::{Command, Commands, Heard, Listener, What};
use crate::hosted::{Hosted, Using};

/// Between two signs of life of a command that says nothing, unless the client asks for others.
const KEEPALIVE_S: u64 = 90;

fn find(sandbox: &Hosted, selector: &Selector) -> Result<Arc<Command>, Fault> {
    let found = match selector {
        Selector::Pid(pid) => sandbox.commands.by_pid(*pid),
        Selector::Tag(tag) => sandbox.commands.by_tag(tag),
    };
    found.ok_or_else(|| Fault::new(Code::NotFound, format!("no command with {selector:?} runs")))
}

/// What an input holds, which comes by another name for a terminal.
fn bytes_of(command: &Command, input: Input) -> Result<Vec<u8>, Fault> {
    let wrong = |words: String| Fault::new(Code::InvalidArgument, words);
    let (name, given) =
        if command.what.terminal.is_some() { ("pty", input.pty) } else { ("stdin", input.stdin) };
    let given = given.ok_or_else(|| wrong(format!("send it as input.{name}")))?;
    STANDARD.decode(given).map_err(|error| wrong(format!("input.{name}: {error}")))
}

fn size_of(pty: Pty) -> Result<TerminalSize, Fault> {
    let side = |n: u32| u16::try_from(n).ok().filter(|n| *n > 0);
    let PtySize { cols, rows } = pty.size;
    let size = side(cols).zip(side(rows)).map(|(columns, rows)| TerminalSize { columns, rows });
    size.ok_or_else(|| Fault::new(Code::InvalidArgument, "pty.size: cols and rows from 1 to 65535"))
}

pub(super) async fn list(Opened(sandbox): Opened) -> Response {
    let told = |command: &Arc<Command>| {
        let What { cmd, args, env, cwd, tag, .. } = &command.what;
        let mut told = json!({ "pid": command.pid, "config": { "cmd": cmd, "args": args, "envs": env } });
        if let Some(cwd) = cwd {
            told["config"]["cwd"] = cwd.as_str().into();
        }
        if let Some(tag) = tag {
            told["tag"] = tag.as_str().into();
        }
        told
    };
    let all: Value = sandbox.commands.all().iter().map(told).collect();
    answer(&json!({ "processes": all }))
}

pub(super) async fn start(Opened(sandbox): Opened, headers: HeaderMap, bytes: Bytes) -> Response {
    match started(sandbox, &headers, &bytes).await {
        Ok((command, listener)) => events(&command, listener, keepalive(&headers)),
        Err(fault) => stopped(&fault),
    }
}

async fn started(
    sandbox: Using,
    headers: &HeaderMap,
    bytes: &Bytes,
) -> Result<(Arc<Command>, Listener), Fault> {
    let asked: Start = asked_once(headers, bytes)?;
    let size = asked.pty.map(size_of).transpose()?;
    let terminal = size.map(|size| Terminal { size, echo: true });
    let what = What {
        cmd: asked.process.cmd,
        args: asked.process.args,
        env: asked.process.envs,
        cwd: asked.process.cwd.filter(|cwd| !cwd.is_empty()).map(|cwd| absolute(&cwd)),
        tag: asked.tag,
        has_input: terminal.is_some() || asked.stdin.unwrap_or(true),
        timeout_ms: timeout_ms(headers)?,
        terminal,
    };
    Ok(Commands::start(sandbox, what).await?)
}

pub(super) async fn connect(Opened(sandbox): Opened, headers: HeaderMap, bytes: Bytes) -> Response {
    let found = || {
        let Of { process } = asked_once(&headers, &bytes)?;
        let command = find(&sandbox, &process)?;
        let listener = command.listen()?;
        Ok::<_, Fault>((command, listener))
    };
    match found() {
        Ok((command, listener)) => events(&command, listener, keepalive(&headers)),
        Err(fault) => stopped(&fault),
    }
}

fn keepalive(headers: &HeaderMap) -> Duration {
    let asked = headers.get("keepalive-ping-interval").and_then(|text| text.to_str().ok()?.parse().ok());
    Duration::from_secs(asked.filter(|seconds| *seconds > 0).unwrap_or(KEEPALIVE_S))
}

/// What a command does, from now to its end. The end of the request is not the end of the command.
fn events(command: &Arc<Command>, listener: Listener, keepalive: Duration) -> Response {
    let first = frame(&json!({ "event": { "start": { "pid": command.pid } } }));
    let begun = (Some(first), Some(listener));
    let output = if command.what.terminal.is_some() { "pty" } else { "stdout" };
    stream(unfold(begun, move |(first, listener)| async move {
        let mut listener = listener?;
        if let Some(first) = first {
            return Some((first, (None, Some(listener))));
        }
        let heard = tokio::time::timeout(keepalive, listener.next()).await;
        let (bytes, is_last) = match heard {
            Err(_) => (frame(&json!({ "event": { "keepalive": {} } })), false),
            Ok(Heard::Out(bytes)) => (data(output, &bytes), false),
            Ok(Heard::Err(bytes)) => (data("stderr", &bytes), false),
            Ok(Heard::Ended(end)) => (ended(end), true),
            Ok(Heard::Lost) => {
                let words = "the client read too slowly: 32 MiB waited for it, or 64 MiB for all that listen in \
                             this sandbox; they and the rest are lost to it, the command goes on; write long \
                             output to a file";
                (last(Some(&Fault::new(Code::DataLoss, words))), true)
            }
        };
        Some((bytes, (None, Some(listener).filter(|_| !is_last))))
    }))
}

fn data(stream: &str, bytes: &[u8]) -> Bytes {
    frame(&json!({ "event": { "data": { stream: STANDARD.encode(bytes) } } }))
}

/// The last frames.
fn ended(end: End) -> Bytes {
    let told = match end {
        End::Exit(code) => {
            json!({ "exitCode": code, "exited": true, "status": format!("exit status {code}") })
        }
        End::Signal(_) | End::Memory | End::Output | End::Cpu => {
            let reason = end.reason();
            json!({ "exitCode": -1, "exited": false, "status": reason, "error": reason })
        }
        End::Wall => {
            let words = "the command took longer than its timeout: all that it started was killed";
            return last(Some(&Fault::new(Code::DeadlineExceeded, words)));
        }
        End::Broke => {
            // The client looks for "was not found".
            let words = "the sandbox was not found: it ended while the command ran";
            return last(Some(&Fault::new(Code::Unavailable, words)));
        }
    };
    [frame(&json!({ "event": { "end": told } })), last(None)].concat().into()
}

pub(super) async fn send_input(
    Opened(sandbox): Opened,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, Fault> {
    let SendInput { process, input } = asked(&headers, &bytes)?;
    let command = find(&sandbox, &process)?;
    command.input(bytes_of(&command, input)?).await?;
    Ok(answer(&json!({})))
}

pub(super) async fn update(
    Opened(sandbox): Opened,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, Fault> {
    let Update { process, pty } = asked(&headers, &bytes)?;
    find(&sandbox, &process)?.resize(size_of(pty)?).await?;
    Ok(answer(&json!({})))
}

pub(super) async fn stream_input(Opened(sandbox): Opened, headers: HeaderMap, body: Body) -> Response {
    once(&passed_on(&sandbox, &headers, body).await.map(|()| json!({})))
}

/// Passes input on as it comes, until there is no more.
async fn passed_on(sandbox: &Hosted, headers: &HeaderMap, body: Body) -> Result<(), Fault> {
    let mut messages = Messages::of(headers, body)?;
    let mut command = None;
    while let Some(message) = messages.next().await? {
        match (message, &command) {
            (StreamInput::Start(Of { process }), _) => command = Some(find(sandbox, &process)?),
            (StreamInput::Data { input }, Some(command)) => {
                command.input(bytes_of(command, input)?).await?;
            }
            (StreamInput::Data { .. }, None) => {
                return Err(Fault::new(Code::InvalidArgument, "name the command in the first message"));
            }
            (StreamInput::Keepalive {}, _) => {}
        }
    }
    Ok(())
}

pub(super) async fn close_stdin(
    Opened(sandbox): Opened,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, Fault> {
    let Of { process } = asked(&headers, &bytes)?;
    find(&sandbox, &process)?.close_input().await?;
    Ok(answer(&json!({})))
}

pub(super) async fn send_signal(
    Opened(sandbox): Opened,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, Fault> {
    let Signal { process, signal } = asked(&headers, &bytes)?;
    let command = find(&sandbox, &process)?;
    match (signal.as_str(), signal.as_u64()) {
        (Some("SIGNAL_SIGKILL"), _) | (_, Some(9)) => command.kill().await?,
        (Some("SIGNAL_SIGTERM"), _) | (_, Some(15)) => command.terminate().await?,
        _ => {
            let words = format!("signal={signal}: SIGNAL_SIGTERM or SIGNAL_SIGKILL");
            return Err(Fault::new(Code::InvalidArgument, words));
        }
    }
    Ok(answer(&json!({})))
}
