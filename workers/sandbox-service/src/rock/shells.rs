//! Commands, by themselves and in sessions.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use millrace_sandbox::End;
use millrace_sandbox::live::Exec;
use regex::bytes::{Regex, RegexBuilder};
use serde_json::json;

use super::Answer;
use super::envelope::{Asked, Asker, Failure, done};
use super::requests::{Check, CloseSession, CreateSession, Execute, Line, Run};
use crate::hosted::Counts;
use crate::service::{Service, ServiceError, invalid};
use crate::session;

/// What a command may take that says nothing, and the most that one may ask.
const TIMEOUT: Duration = Duration::from_secs(1_200);
const MOST_TIMEOUT: Duration = Duration::from_secs(24 * 3_600);
/// Characters of a session's name.
const NAME_CHARS: usize = 128;
/// What a client may expect of a program at once, and bytes of each as it is written.
const PATTERNS: usize = 16;
const PATTERN_BYTES: usize = 1024;
/// Bytes of a compiled pattern, which counts as the first of these that it fits into. They bound how
/// long a search takes: about 2 s for 128 KiB, where `\w` has 50.
const COMPILED_BYTES: [usize; 5] = [2 << 10, 8 << 10, 32 << 10, 64 << 10, 128 << 10];
/// The same of all patterns of a request.
const ALL_COMPILED_BYTES: usize = 512 << 10;
/// Bytes of what a search makes of a pattern on its way.
const CACHE_BYTES: usize = 256 << 10;

fn timeout_of(seconds: Option<f64>) -> Result<Duration, ServiceError> {
    let Some(seconds) = seconds else { return Ok(TIMEOUT) };
    let asked = Duration::try_from_secs_f64(seconds).ok().filter(|asked| !asked.is_zero());
    let remedy = "a number of seconds above 0";
    asked.map(|asked| asked.min(MOST_TIMEOUT)).ok_or_else(|| invalid("timeout", seconds.to_string(), remedy))
}

pub(super) async fn execute(
    State(service): State<Service>,
    Asker(owner): Asker,
    Asked(asked): Asked<Execute>,
) -> Answer {
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

pub(super) async fn create(
    State(service): State<Service>,
    Asker(owner): Asker,
    Asked(asked): Asked<CreateSession>,
) -> Answer {
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
    sandbox.sessions.open(&sandbox.live, &asked.session, shell).await?;
    let mut output = String::new();
    if let Some(session) = sandbox.sessions.find(&asked.session) {
        for path in &asked.startup_source {
            let text = format!("source '{}'", path.replace('\'', r"'\''"));
            let line = session::Line { text, talks: false, expect: Arc::default(), timeout: TIMEOUT };
            output += &session.run(line).await?.output;
        }
    }
    Ok(done(&json!({ "output": output, "session_type": "bash" })))
}

pub(super) async fn run(
    State(service): State<Service>,
    Asker(owner): Asker,
    Asked(asked): Asked<Run>,
) -> Answer {
    let sandbox = service.use_it(owner, &asked.sandbox_id)?;
    if asked.command.contains('\0') {
        return Err(invalid("command", asked.command, "leave out the NUL byte").into());
    }
    let timeout = timeout_of(asked.timeout)?;
    let Some(session) = sandbox.sessions.find(&asked.session) else {
        return Err(invalid(
            "session",
            asked.session,
            "there is none of this name, or it made room for another; create it",
        )
        .into());
    };
    Counts::add(&sandbox.counts.commands);
    let interactive = asked.is_interactive_command || asked.is_interactive_quit;
    let expect = compiled(asked.expect).await?;
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

/// What a client expects, compiled on a thread beside the runtime.
async fn compiled(expect: Vec<String>) -> Result<Arc<[Regex]>, ServiceError> {
    if expect.is_empty() {
        return Ok(Arc::default());
    }
    let failed = |error: tokio::task::JoinError| invalid("expect", error.to_string(), "leave it out");
    tokio::task::spawn_blocking(move || patterns(&expect)).await.map_err(failed)?
}

/// What a client expects, as ROCK reads it: `.` is any character, the end of a line too.
fn patterns(expect: &[String]) -> Result<Arc<[Regex]>, ServiceError> {
    if expect.len() > PATTERNS {
        return Err(invalid("expect", format!("{} patterns", expect.len()), "16 at most"));
    }
    let mut left = ALL_COMPILED_BYTES;
    expect.iter().map(|text| pattern(text, &mut left)).collect()
}

/// One of them, within the bytes that all have left.
fn pattern(text: &str, left: &mut usize) -> Result<Regex, ServiceError> {
    let wrong = |remedy: &str| Err(invalid("expect", text, remedy));
    if text.len() > PATTERN_BYTES {
        return wrong("a pattern has 1024 bytes at most; expect less of what is written");
    }
    for bytes in COMPILED_BYTES.into_iter().filter(|bytes| bytes <= left) {
        let mut pattern = RegexBuilder::new(text);
        pattern.dot_matches_new_line(true).size_limit(bytes).dfa_size_limit(CACHE_BYTES);
        match pattern.build() {
            Ok(pattern) if !pattern.is_match(b"") => {
                *left -= bytes;
                return Ok(pattern);
            }
            Err(regex::Error::CompiledTooBig(_)) => {}
            _ => {
                return wrong(
                    "a regular expression that matches something, without look-around and references",
                );
            }
        }
    }
    wrong(
        "it is too large: compiled, a pattern has 128 KiB at most and all together 512 KiB; repeat less, and \
         write [a-z] for \\w",
    )
}

pub(super) async fn close(
    State(service): State<Service>,
    Asker(owner): Asker,
    Asked(asked): Asked<CloseSession>,
) -> Answer {
    let sandbox = service.use_it(owner, &asked.sandbox_id)?;
    if !sandbox.sessions.close(&asked.session) {
        return Err(invalid("session", asked.session, "there is none of this name").into());
    }
    Ok(done(&json!({ "session_type": "bash" })))
}

#[cfg(test)]
mod tests {
    use super::patterns;

    #[test]
    fn what_is_expected_is_bounded_one_by_one_and_together() {
        let read =
            |pattern: &str, n| patterns(&vec![pattern.to_owned(); n]).map_err(|error| error.to_string());
        // As prompts are.
        let prompt = r"[\w.-]+@[\w.-]+:.*\$ ";
        assert!(read(prompt, 4).is_ok() && read(">>> ", 16).is_ok());
        let refused = read(prompt, 5).unwrap_err();
        assert!(refused.starts_with("expect=[") && refused.contains("all together 512 KiB"), "{refused}");
        assert!(read("a[ab]{15000}[^ab]", 1).unwrap_err().contains("128 KiB at most"));
        assert!(read("a*", 1).unwrap_err().contains("matches something"));
    }
}
