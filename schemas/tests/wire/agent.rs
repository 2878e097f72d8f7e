//! The settings of the environment `agent` in a run file.

use millrace_schemas::submit::{RunFileError, RunSpec};
use serde_json::{Value, json};

use crate::run_file::{read, with};

/// A run whose agents ask for these hosts.
fn asks(network: &Value) -> Result<RunSpec, RunFileError> {
    let mut file = with("model", json!({ "kind": "hugging_face", "path": "m" }));
    file["environment"] = json!({
        "name": "agent", "command": ["agent"], "reward": ["true"], "network": network, "context_tokens": 256,
        "rows": { "path": "rows.jsonl", "answer": "" },
    });
    file["algorithm"]["learning_rate"] = json!(1e-5);
    read(&file)
}

#[test]
fn an_agents_hosts_are_names_with_ports_and_public_addresses() {
    let fine = json!(["pypi.org:443", "*.pythonhosted.org:443", "1.1.1.1:443", "[2606:4700::1111]:443"]);
    let spec = asks(&fine).expect("it may be asked for");
    let text = serde_json::to_value(&spec).expect("a run file is JSON");
    assert_eq!(text["environment"]["network"], fine);
    let none =
        serde_json::to_value(asks(&json!([])).expect("none is the default")).expect("a run file is JSON");
    assert_eq!(none["environment"].get("network"), None);
}

#[test]
fn every_host_that_cannot_be_is_refused_with_its_remedy() {
    let bad = [
        ("pypi.org", "write host:port"),
        ("pypi.org:*", "write host:port"),
        ("pypi.org:0", "write host:port"),
        ("https://pypi.org:443", "such as pypi.org:443"),
        ("user@pypi.org:443", "such as pypi.org:443"),
        ("*:443", "a * is the whole beginning"),
        ("*.org:443", "a * is the whole beginning"),
        ("127.0.0.1:8080", "of the machine itself"),
        ("10.0.0.1:443", "of a private network"),
        ("[fd00:ec2::254]:80", "metadata"),
        ("169.254.169.254:80", "link-local"),
        ("2130706433:80", "four numbers"),
    ];
    let mut hosts = vec!["pypi.org:443"];
    hosts.extend(bad.map(|(host, _)| host));
    let Err(RunFileError::Refused(refusals)) = asks(&json!(hosts)) else { panic!("it is not refused") };
    assert_eq!(refusals.len(), bad.len(), "each once, and the good one not: {refusals:?}");
    for (i, (host, remedy)) in bad.into_iter().enumerate() {
        let field = format!("environment.network[{}]", i + 1);
        let found = refusals.iter().find(|refusal| refusal.field == field).expect("it is refused");
        assert!(found.value.contains(host) && found.remedy.contains(remedy), "{host}: {found:?}");
    }
    let many = json!(vec!["pypi.org:443"; 65]);
    let Err(RunFileError::Refused(refusals)) = asks(&many) else { panic!("it is not refused") };
    assert!(refusals.len() == 1 && refusals[0].remedy.contains("at most 64"), "{refusals:?}");
}

#[test]
fn calls_side_by_side_are_samples_of_their_own() {
    let asks = |forks: &str, parallel_calls: u32| {
        let mut file = with("model", json!({ "kind": "hugging_face", "path": "m" }));
        file["environment"] = json!({
            "name": "agent", "command": ["agent"], "reward": ["true"], "context_tokens": 256, "forks": forks,
            "parallel_calls": parallel_calls, "rows": { "path": "rows.jsonl", "answer": "" },
        });
        file["algorithm"]["learning_rate"] = json!(1e-5);
        read(&file)
    };
    for (forks, parallel_calls) in [("refuse", 1), ("append", 1), ("separate", 1), ("separate", 64)] {
        let spec = asks(forks, parallel_calls).expect("it may be asked for");
        assert_eq!(spec.part(0).environment.parallel_calls(), parallel_calls);
    }
    for (forks, parallel_calls, remedy) in
        [("refuse", 2, "separate"), ("append", 2, "separate"), ("separate", 0, "1"), ("separate", 65, "64")]
    {
        let Err(RunFileError::Refused(refusals)) = asks(forks, parallel_calls) else {
            panic!("it is not refused")
        };
        assert_eq!((refusals.len(), refusals[0].field.as_str()), (1, "environment.parallel_calls"));
        assert!(refusals[0].remedy.contains(remedy), "{refusals:?}");
    }
}
