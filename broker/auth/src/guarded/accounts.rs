//! Accounts of the guarded server. Streams, keys and the server's notices are in the account [`HOME`], where only the
//! coordinator and the operator are. Each other user is in an account of its own and imports what it has a right to,
//! and no more.
//!
//! So no client's reply subject leads to a stream. The server sends a reply to any subject that the
//! client names, without checking whether the client may publish there. But it sends the reply in
//! the client's account, where nothing is stored. A reply cannot reach what the account may not
//! import.

use std::collections::BTreeSet;
use std::fmt::Write;

use millrace_schemas::limits::MAX_PAYLOAD_BYTES;
use millrace_schemas::role::{Role, inbox_prefix};
use millrace_schemas::subjects::imported_request;

use super::config::User;

/// The account that holds the streams.
const HOME: &str = "MILLRACE";
/// Requests that are answered by several messages, or by one that may come late.
const SEVERAL_ANSWERS: [&str; 3] = ["$JS.API.CONSUMER.MSG.NEXT.", "$JS.API.DIRECT.GET.", "$SRV."];
/// How long the server keeps the way back for such answers after the last one: four of the heartbeats that come while
/// a pull waits. Each way takes 1 KB of the server's memory.
const ANSWERS_WITHIN: &str = "20s";

/// The accounts as the server's configuration spells them.
pub(super) fn render(users: &[User]) -> String {
    let (home, others): (Vec<&User>, Vec<&User>) = users.iter().partition(|user| is_at_home(user));
    let services: BTreeSet<&String> = others.iter().flat_map(|user| services(user)).collect();
    let streams: BTreeSet<&String> = others.iter().flat_map(|user| streams(user)).collect();
    let mut text = format!("  {HOME} {{\n    jetstream: enabled\n    exports: [\n");
    // Writing to a string does not fail.
    for subject in services {
        let several = SEVERAL_ANSWERS.iter().any(|start| subject.starts_with(start));
        let how = match several {
            true => format!(", response_type: stream, response_threshold: \"{ANSWERS_WITHIN}\""),
            false => String::new(),
        };
        let _ = writeln!(text, "      {{ service: \"{subject}\"{how} }}");
    }
    for subject in streams {
        let _ = writeln!(text, "      {{ stream: \"{subject}\" }}");
    }
    text += "    ]\n    users: [\n";
    text.extend(home.into_iter().map(entry));
    text += "    ]\n  }\n";
    text.extend(others.into_iter().map(account));
    text
}

fn is_at_home(user: &User) -> bool {
    Role::ALL.into_iter().any(|role| role.is_at_home() && role.name() == user.name)
}

/// The subjects of a user for requests and messages.
fn services(user: &User) -> impl Iterator<Item = &String> {
    user.rights.publish.iter().filter(|subject| !is_own(user, subject))
}

/// The subjects that a user receives.
fn streams(user: &User) -> impl Iterator<Item = &String> {
    user.rights.subscribe.iter().filter(|subject| !is_own(user, subject))
}

/// Its replies stay in its account.
fn is_own(user: &User, subject: &str) -> bool {
    subject.strip_prefix(inbox_prefix(&user.name).as_str()).is_some_and(|rest| rest.starts_with('.'))
}

/// The account of a user that is not at home.
fn account(user: &User) -> String {
    let name = &user.name;
    let held = user.allowance.map_or_else(String::new, |of| {
        format!("max_connections: {}, max_subscriptions: {}, ", of.connections, of.subscriptions)
    });
    let mut text = format!("  \"{name}\" {{\n    limits {{ {held}max_payload: {MAX_PAYLOAD_BYTES} }}\n");
    // The server answers `$JS.API` itself in each account, saying that this one has no streams. What is asked of
    // the home account goes by another name.
    let renamed: Vec<(&String, String)> =
        services(user).filter_map(|subject| Some((subject, imported_request(subject)?))).collect();
    text += "    mappings: {\n";
    for (subject, to) in &renamed {
        let _ = writeln!(text, "      \"{subject}\": \"{}\"", to.replace('*', "$1"));
    }
    text += "    }\n    imports: [\n";
    for subject in services(user) {
        let to = imported_request(subject).map(|to| format!(", to: \"{to}\"")).unwrap_or_default();
        let _ = writeln!(text, "      {{ service: {{ account: {HOME}, subject: \"{subject}\" }}{to} }}");
    }
    for subject in streams(user) {
        let _ = writeln!(text, "      {{ stream: {{ account: {HOME}, subject: \"{subject}\" }} }}");
    }
    text + "    ]\n    users: [\n" + &entry(user) + "    ]\n  }\n"
}

/// A user with what it may say and hear in its account.
fn entry(user: &User) -> String {
    let rights = &user.rights;
    let renamed = rights.publish.iter().filter_map(|subject| imported_request(subject));
    let renamed = if is_at_home(user) { Vec::new() } else { renamed.collect() };
    let publish: Vec<&String> = rights.publish.iter().chain(&renamed).collect();
    let subscribe: Vec<&String> = rights.subscribe.iter().collect();
    let mut text =
        format!("      {{ # {}\n        nkey: {}\n        permissions {{\n", user.name, user.public);
    for (what, subjects) in [("publish", publish), ("subscribe", subscribe)] {
        let _ = writeln!(text, "          {what} {{ allow: [");
        for subject in subjects {
            let _ = writeln!(text, "            \"{subject}\"");
        }
        text += "          ] }\n";
    }
    if rights.respond {
        text += "          allow_responses: true\n";
    }
    text + "        }\n      }\n"
}

#[cfg(test)]
mod tests {
    use millrace_schemas::Stage;
    use millrace_schemas::role::{Allowance, Rights};
    use millrace_schemas::subjects::{IMPORTED_API, task_stream};

    use super::*;

    #[test]
    fn nobody_but_coordinator_and_operator_is_where_the_streams_are() {
        let user = |role: Role| User {
            name: role.name().to_owned(),
            public: "U".to_owned(),
            rights: Rights::of(role.name(), &[role]),
            allowance: Allowance::of(&[role]),
        };
        let text = render(&Role::ALL.map(user));
        let (home, others) = text.split_once("\n  \"").unwrap();
        assert!(home.contains("# coordinator") && home.matches("nkey:").count() == 2, "{home}");
        assert!(!home.contains("_INBOX_generate") && !others.contains("jetstream"), "{text}");
        let rewarder = text.split("  \"reward\" {").nth(1).unwrap();
        let asked = format!("{IMPORTED_API}.CONSUMER.INFO.{}.*", task_stream(Stage::Reward));
        assert!(rewarder.contains(&format!("to: \"{asked}\"")), "{rewarder}");
        assert_eq!(others.matches("max_subscriptions").count(), Role::ALL.len() - 2, "{others}");
    }
}
