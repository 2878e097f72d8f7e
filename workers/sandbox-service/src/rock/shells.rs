//! Commands, by themselves and in sessions.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use millrace_sandbox::End;
use millrace_sandbox::live::Exec;
use regex::bytes::{Regex, RegexBuilder};
use serde_json::json;

use super::Answer;
use super::envelope::{Failure, body, done, owner_of};
use super::requests::{Check, CloseSession, CreateSession, Execute, Line, Run};
use crate::hosted::Counts;
use crate::service::{Service, ServiceError, invalid};
use crate::session;

/// What a command may take that says nothing, and the most that one may ask.
const TIMEOUT: Duration = Duration::from_secs(1_200);
const MOST_TIMEOUT: Duration = Duration::from_secs(24 * 3_600);
/// Characters of a session's name.
const NAME_CHARS: usize = 128;
/// What a client may expect of a program at once, and bytes of each, compiled.
const PATTERNS: usize = 16;
const PATTERN_BYTES: usize = 1024 * 1024;

fn timeout_of(seconds: Option<f64>) -> Result<Duration, ServiceError> {
    let Some(seconds) = seconds else { return Ok(TIMEOUT) };
    let asked = Duration::try_from_secs_f64(seconds).ok().filter(|asked| !asked.is_zero());
    let remedy = "a number of seconds above 0";
    asked.map(|asked| asked.min(MOST_TIMEOUT)).ok_or_else(|| invalid("timeout", seconds.to_string(), remedy))
}

pub(super) async fn execute(State(service): State<Service>, headers: HeaderMap, bytes: Bytes) -> Answer {
    let owner = owner_of(&service, &headers)?;
    let asked: Execute = body(&bytes)?;
    let sandbox = service.use_it(owner, &asked.sandbox_id)?;
    let timeout = timeout_of(asked.timeout)?;
    let exec = match asked.command {
        Line::Shell(line) => Exec::shell(&line),
        Line::Program(words) => Exec::new(words),
    };
    let exec = Exec {
        env: asked.env.unwrap_or_default(),
        cwd: asked.cwd,
        timeout_ms: Some(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
        ..exec
    };
    Counts::add(&sandbox.counts.commands);
    let output = sandbox.live.exec(exec, b"").await?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let with = |words: String| match &asked.error_msg {
        Some(message) => format!("{message}: {words}"),
        None => words,
    };
    match output.end {
        End::Exit(0) => {}
        End::Exit(code) if asked.check == Some(true) => {
            let words =
                format!("the command failed with exit code {code}; stdout: {stdout:?}; stderr: {stderr:?}");
            return Err(Failure::command(with(words), Some(code)));
        }
        End::Exit(_) | End::Signal(_) => {}
        end => {
            let words = format!("{}; all that it started was killed", end.reason());
            return Err(Failure::command(with(words), Some(output.code())));
        }
    }
    Ok(done(&json!({ "stdout": stdout, "stderr": stderr, "exit_code": output.code() })))
}

pub(super) async fn create(State(service): State<Service>, headers: HeaderMap, bytes: Bytes) -> Answer {
    let owner = owner_of(&service, &headers)?;
    let asked: CreateSession = body(&bytes)?;
    let sandbox = service.use_it(owner, &asked.sandbox_id)?;
    if asked.session.is_empty() || asked.session.chars().count() > NAME_CHARS {
        return Err(invalid("session", asked.session, "a name of 1 to 128 characters").into());
    }
    if let Some(user) = asked.remote_user.filter(|user| !["user", "root"].contains(&user.as_str())) {
        return Err(
            invalid("remote_user", user, "a sandbox has one user, without rights; leave it out").into()
        );
    }
    let shell =
        Exec { env: asked.env.unwrap_or_default(), ..Exec::new(["/bin/bash", "--norc", "--noprofile"]) };
    sandbox.open_session(&asked.session, shell).await?;
    let mut output = String::new();
    if let Some(session) = sandbox.session(&asked.session) {
        for path in &asked.startup_source {
            let text = format!("source '{}'", path.replace('\'', r"'\''"));
            let line = session::Line { text, talks: false, expect: Vec::new(), timeout: TIMEOUT };
            output += &session.run(line).await?.output;
        }
    }
    Ok(done(&json!({ "output": output, "session_type": "bash" })))
}

pub(super) async fn run(State(service): State<Service>, headers: HeaderMap, bytes: Bytes) -> Answer {
    let owner = owner_of(&service, &headers)?;
    let asked: Run = body(&bytes)?;
    let sandbox = service.use_it(owner, &asked.sandbox_id)?;
    if asked.command.contains('\0') {
        return Err(invalid("command", asked.command, "leave out the NUL byte").into());
    }
    let timeout = timeout_of(asked.timeout)?;
    let Some(session) = sandbox.session(&asked.session) else {
        return Err(invalid("session", asked.session, "there is none of this name; create it").into());
    };
    Counts::add(&sandbox.counts.commands);
    let interactive = asked.is_interactive_command || asked.is_interactive_quit;
    let expect = patterns(&asked.expect)?;
    let talks = interactive || !expect.is_empty();
    let ran = session.run(session::Line { text: asked.command, talks, expect, timeout }).await?;
    let output = ran.output.trim();
    if let (Check::Raise, Some(code @ 1..), false) = (asked.check, ran.exit_code, interactive) {
        let words = format!("the command failed with exit code {code}; its output: {output:?}");
        let words = asked.error_msg.map_or(words.clone(), |message| format!("{message}: {words}"));
        return Err(Failure::command(words, Some(code)));
    }
    // ROCK's: a program that goes on has done well so far.
    let exit_code = ran.exit_code.or(interactive.then_some(0)).filter(|_| asked.check != Check::Ignore);
    Ok(done(&json!({
        "output": output,
        "exit_code": exit_code,
        "failure_reason": "",
        "expect_string": ran.expected.unwrap_or_default(),
        "session_type": "bash",
    })))
}

/// What a client expects, as ROCK reads it: `.` is any character, the end of a line too.
fn patterns(expect: &[String]) -> Result<Vec<Regex>, ServiceError> {
    if expect.len() > PATTERNS {
        return Err(invalid("expect", format!("{} patterns", expect.len()), "16 at most"));
    }
    let compiled = |text: &String| {
        let pattern =
            RegexBuilder::new(text).dot_matches_new_line(true).size_limit(PATTERN_BYTES).build().ok();
        let remedy = "a regular expression that matches something, without look-around and references";
        pattern.filter(|pattern| !pattern.is_match(b"")).ok_or_else(|| invalid("expect", text, remedy))
    };
    expect.iter().map(compiled).collect()
}

pub(super) async fn close(State(service): State<Service>, headers: HeaderMap, bytes: Bytes) -> Answer {
    let owner = owner_of(&service, &headers)?;
    let asked: CloseSession = body(&bytes)?;
    let sandbox = service.use_it(owner, &asked.sandbox_id)?;
    if !sandbox.close_session(&asked.session) {
        return Err(invalid("session", asked.session, "there is none of this name").into());
    }
    Ok(done(&json!({ "session_type": "bash" })))
}
