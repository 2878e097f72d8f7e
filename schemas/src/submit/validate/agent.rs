//! Checks of the environment `agent`.

use std::collections::BTreeMap;

use millrace_egress::Rule;

use super::Checks;
use crate::env_step::{AgentSpec, Forks};
use crate::file_name;
use crate::limits::{
    MAX_AGENT_ARGUMENTS, MAX_AGENT_CALL_MS, MAX_AGENT_FILES_BYTES, MAX_AGENT_HOSTS, MAX_AGENT_IDLE_MS,
    MAX_AGENT_TIME_MS, MAX_PARALLEL_CALLS, MAX_REWARD_PROGRAM_MS,
};

/// Checks an agent's settings, which are at the path `at` of the run file; its rows are checked apart.
pub(super) fn check(agent: &AgentSpec, at: &str, checks: &mut Checks) {
    let field = |name: &str| format!("{at}.{name}");
    for (name, words) in [("command", &agent.command), ("reward", &agent.reward)] {
        checks.require(
            words.first().is_some_and(|program| !program.is_empty())
                && words.len() <= MAX_AGENT_ARGUMENTS
                && words.iter().all(|word| !word.contains('\0')),
            &field(name),
            format!("{words:?}"),
            format!(
                "give the program and its arguments, 1 to {MAX_AGENT_ARGUMENTS} texts without a zero byte"
            ),
        );
    }
    checks.require(
        agent.rows.tools.is_empty(),
        &field("rows.tools"),
        format!("{:?}", agent.rows.tools),
        "an agent brings its own tools; leave these out, or choose environment.name = \"dataset\"",
    );
    check_files(&agent.files, &field("files"), checks);
    check_files(&agent.reward_files, &field("reward_files"), checks);
    for name in agent.env.keys() {
        checks.require(
            !name.is_empty() && !name.contains(['=', '\0']),
            &field("env"),
            format!("{name:?}"),
            "a variable's name is not empty and has no '='",
        );
    }
    check_network(&agent.network, &field("network"), checks);
    let parallel = field("parallel_calls");
    checks.count(&parallel, u64::from(agent.parallel_calls), 1, u64::from(MAX_PARALLEL_CALLS));
    checks.require(
        agent.parallel_calls <= 1 || agent.forks == Forks::Separate,
        &parallel,
        agent.parallel_calls,
        "calls side by side are samples of their own, which forks = \"separate\" allows",
    );
    checks.count(&field("call_ms"), agent.call_ms, 1, MAX_AGENT_CALL_MS);
    checks.count(&field("time_ms"), agent.time_ms, 1, MAX_AGENT_TIME_MS);
    checks.count(&field("reward_ms"), agent.reward_ms, 1, MAX_REWARD_PROGRAM_MS);
    checks.count(&field("idle_ms"), agent.idle_ms, 1, MAX_AGENT_IDLE_MS);
}

fn check_network(hosts: &[String], field: &str, checks: &mut Checks) {
    checks.require(
        hosts.len() <= MAX_AGENT_HOSTS,
        field,
        format!("{} hosts", hosts.len()),
        format!("name at most {MAX_AGENT_HOSTS}; *.example.org:443 has all below example.org"),
    );
    for (i, host) in hosts.iter().enumerate().take(MAX_AGENT_HOSTS) {
        if let Err(error) = host.parse::<Rule>() {
            checks.require(false, &format!("{field}[{i}]"), format!("{host:?}"), error.to_string());
        }
    }
}

fn check_files(files: &BTreeMap<String, String>, field: &str, checks: &mut Checks) {
    let bytes: usize = files.iter().map(|(path, text)| path.len() + text.len()).sum();
    checks.require(
        bytes <= MAX_AGENT_FILES_BYTES,
        field,
        format!("{bytes} bytes"),
        format!(
            "they travel with each task; choose at most {MAX_AGENT_FILES_BYTES} bytes, and put more into the rows"
        ),
    );
    for path in files.keys() {
        checks.require(
            file_name::is_inner_path(path),
            field,
            format!("{path:?}"),
            "give a relative path of plain names, without '.' and '..'",
        );
    }
}
