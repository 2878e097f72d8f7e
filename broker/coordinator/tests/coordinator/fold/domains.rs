//! Several domains: every batch has the configured mix, despite drops, losses and kills, and each
//! domain has environment, rewards, limits and books of its own.

use std::collections::{BTreeMap, BTreeSet};

use millrace_schemas::api::DomainStatus;
use millrace_schemas::submit::mix;

use super::*;

/// Turns, tokens of a turn and rewards of each domain.
const TURNS: [u32; 3] = [1, 5, 3];
const TOKENS: [u32; 3] = [4, 2, 1];
const POOLS: [&[&str]; 3] = [&["env_return"], &["success", "own"], &["env_return", "format"]];

fn mixed(steps: u64, groups: u32, more: &str) -> RunSpec {
    let text = format!(
        r#"
        name = "{RUN}"
        steps = {steps}
        model = {{ kind = "scripted" }}
        evaluate = {{ prompts = 7, every = 4 }}
        rewards = [{{ rule = "env_return" }}, {{ rule = "format", weight = 0.1 }}]
        [rollout]
        groups_per_step = {groups}
        group_size = 2
        max_replacements = 0
        {more}
        [[domains]]
        name = "math"
        share = 0.4
        environment = {{ name = "counter", turns = 1 }}
        rewards = [{{ rule = "env_return" }}]
        max_new_tokens = 4
        [[domains]]
        name = "code"
        share = 0.3
        environment = {{ name = "counter", turns = 5 }}
        rewards = [{{ rule = "success" }}, {{ rule = "custom", pool = "own", weight = 2.0 }}]
        max_new_tokens = 2
        [[domains]]
        name = "general"
        share = 0.3
        environment = {{ name = "counter", turns = 3 }}
        "#
    );
    from_toml(&text).expect("a valid run file")
}

fn domains(harness: &Harness) -> Vec<DomainStatus> {
    status::status(harness.run()).domains
}

/// The books balance, of each domain and of all together.
fn check_books(harness: &Harness) {
    let (whole, domains) = (status::ledger(harness.run()), domains(harness));
    assert!(whole.balanced(), "{whole:?}");
    assert!(domains.iter().all(|domain| domain.ledger.balanced()), "{domains:#?}");
    let sum = |of: fn(&DomainStatus) -> u64| domains.iter().map(of).sum::<u64>();
    assert_eq!(sum(|domain| domain.ledger.admitted), whole.admitted);
    assert_eq!(sum(|domain| domain.ledger.trained), whole.trained);
    assert_eq!(sum(|domain| domain.ledger.in_flight), whole.in_flight);
    for (reason, count) in &whole.dropped {
        let of = domains.iter().filter_map(|domain| domain.ledger.dropped.get(reason));
        assert_eq!(of.sum::<u64>(), *count, "{reason}");
    }
}

/// Groups of each domain in each batch, in the order of steps.
fn batches(harness: &Harness) -> Vec<[u64; 3]> {
    let batches = harness.blobs.values().filter_map(|blob| decode("batch", blob).ok());
    let mut batches: Vec<Batch> = batches.collect();
    batches.sort_by_key(|batch| batch.base);
    let count =
        |batch: &Batch, domain| batch.groups.iter().filter(|group| group.domain == domain).count() as u64;
    batches.iter().map(|batch| [0, 1, 2].map(|domain| count(batch, domain))).collect()
}

/// The configured mix of `steps` batches.
fn asked(steps: u64, groups: u64) -> Vec<[u64; 3]> {
    let upto = |step| mix::counts(&[4, 3, 3], step * groups);
    let of_batch = |step| [0, 1, 2].map(|domain| upto(step + 1)[domain] - upto(step)[domain]);
    (0..steps).map(of_batch).collect()
}

/// Plays to the end. Every `failing`th turn of the domain `code` becomes a dead letter.
fn play(spec: &RunSpec, restart_every: usize, failing: usize) -> Harness {
    let mut harness = Harness::submit(spec, restart_every);
    let mut turns = 0;
    for _ in 0..200_000 {
        check_books(&harness);
        let next =
            harness.queue.first_key_value().map(|(_, task)| (task.key, task.evaluate, task.body.clone()));
        let Some((key, evaluate, body)) = next else { break };
        if matches!(body, TaskBody::Generate(g) if g.max_new_tokens == TOKENS[1]) && !evaluate {
            turns += 1;
            if failing > 0 && turns % failing == 0 {
                harness.queue.pop_first();
                harness.append(Event::DeadLetter { key, reason: "no".into(), exhausted: false });
                continue;
            }
        }
        harness.work();
    }
    assert_eq!(harness.run().state, RunState::Finished, "{:?}", harness.run().reason);
    harness
}

#[test]
fn every_batch_has_the_configured_mix() {
    for (groups, steps) in [(10, 6), (7, 8), (1, 12)] {
        for alpha in ["0", "1", "3"] {
            for (filter, failing) in [("none", 0), ("equal_rewards", 0), ("equal_rewards", 5)] {
                let more = format!("alpha = {alpha}\nfilter = \"{filter}\"");
                let harness = play(&mixed(steps, groups as u32, &more), 0, failing);
                let what = format!("groups={groups} alpha={alpha} filter={filter} failing={failing}");
                assert_eq!(batches(&harness), asked(steps, groups), "{what}");
                let dropped = status::ledger(harness.run()).dropped;
                assert_eq!(dropped.contains_key("failed"), failing > 0, "{what}: {dropped:?}");
            }
        }
    }
    assert!(asked(6, 10).iter().all(|batch| *batch == [4, 3, 3]), "as it can be");
}

#[test]
fn a_kill_between_any_two_commands_changes_no_mix() {
    let spec = mixed(5, 7, "alpha = 1\nfilter = \"equal_rewards\"");
    let undisturbed = play(&spec, 0, 0);
    for every in [1, 2, 3, 7, 50] {
        let harness = play(&spec, every, 0);
        assert_eq!(bytes(&harness.state), bytes(&undisturbed.state), "every={every}");
    }
    for lose in [5, 23] {
        let mut harness = Harness::submit(&spec, 0);
        for turn in 1..20_000 {
            if turn % lose == 0 {
                harness.lose_all(turn % (harness.log.len() + 1));
            }
            check_books(&harness);
            if !harness.work() {
                break;
            }
        }
        assert_eq!(batches(&harness), asked(5, 7), "lose={lose}");
    }
}

#[test]
fn each_domain_has_its_own_environment_rewards_limits_and_prompts() {
    let mut harness = Harness::submit(&mixed(4, 10, "alpha = 1"), 0);
    let (mut prompts, mut pools) = (BTreeSet::new(), BTreeMap::<u32, BTreeSet<String>>::new());
    for _ in 0..20_000 {
        for task in harness.queue.values().filter(|task| !task.evaluate) {
            let Some(group) = task.key.rollout().and_then(|id| harness.run().groups.get(&id.group)) else {
                continue;
            };
            let domain = group.domain as usize;
            prompts.insert((group.domain, group.prompt));
            match &task.body {
                TaskBody::Generate(generate) => assert_eq!(generate.max_new_tokens, TOKENS[domain]),
                TaskBody::EnvStep(step) => assert_eq!(step.environment.max_turns(), TURNS[domain]),
                TaskBody::Reward(_) => {
                    pools.entry(group.domain).or_default().insert(task.pool.to_string());
                }
                TaskBody::TrainShard(_) | TaskBody::PublishWeights(_) => unreachable!("of no rollout"),
            }
        }
        if !harness.work() {
            break;
        }
    }
    for (domain, expected) in (0..).zip(POOLS) {
        let seen: BTreeSet<&str> = pools[&domain].iter().map(String::as_str).collect();
        assert_eq!(seen, expected.iter().copied().collect());
        let of_domain = prompts.iter().filter(|(of, _)| *of == domain).map(|(_, prompt)| *prompt);
        let given = harness.run().books.domains[domain as usize].prompts;
        assert!(of_domain.eq(0..given), "no prompt of {domain} is skipped");
    }
    for (domain, expected) in domains(&harness).iter().zip([(3, 16), (2, 12), (2, 12)]) {
        let evaluated: Vec<u32> = domain.evaluations.iter().map(|evaluation| evaluation.prompts).collect();
        assert_eq!((evaluated, domain.groups), (vec![expected.0; 2], expected.1), "{domain:?}");
        assert_eq!(domain.ledger.trained, 2 * domain.groups);
        assert_eq!(domain.staleness.iter().sum::<u64>(), domain.ledger.trained);
    }
    let whole = harness.run().books.evaluations[1].clone();
    let solved: f64 = domains(&harness)
        .iter()
        .map(|domain| domain.evaluations[1].success.unwrap_or(0.0) * f64::from(domain.evaluations[1].prompts))
        .sum();
    assert!((whole.success.unwrap() * 7.0 - solved).abs() < 1e-9, "the parts make the whole");
}

#[test]
fn a_version_that_the_log_lost_keeps_the_mix() {
    for known in [0, 5] {
        let mut harness = Harness::submit(&mixed(5, 10, "alpha = 1"), 0);
        take(
            &mut harness,
            |body| matches!(body, TaskBody::PublishWeights(p) if p.manifest.version == PolicyVersion(2)),
        );
        // Some of its groups are in play here, others only the lost part of the log knew.
        let rollout =
            AdoptedRollout { attempt: 0, start_version: PolicyVersion(1), reward: 1.0, success: true };
        let run = harness.run();
        let mut ids: Vec<u64> = run.groups.keys().copied().take(known).collect();
        ids.extend((run.next_group + 3..).take(10 - known));
        let mut left = [4, 3, 3];
        for id in &ids[..known] {
            left[run.groups[id].domain as usize] -= 1;
        }
        let mut others = (0..3).flat_map(|domain| vec![domain; left[domain as usize]]);
        let domain =
            |id: &u64| run.groups.get(id).map_or_else(|| others.next().expect("ten"), |group| group.domain);
        let domains: Vec<u32> = ids.iter().map(domain).collect();
        let groups = ids.iter().zip(domains);
        let groups =
            groups.map(|(group, domain)| AdoptedGroup { group: *group, domain, rollouts: vec![rollout; 2] });
        let adopted = Adopted {
            version: PolicyVersion(2),
            manifest: millrace_schemas::blob::Sha::of(b"another"),
            batch: Some(millrace_schemas::BlobRef::of(b"another batch")),
            groups: groups.collect(),
        };
        let before = batches(&harness).len();
        harness.append(Event::Adopted(Box::new(adopted)));
        check_books(&harness);
        for _ in 0..20_000 {
            check_books(&harness);
            if !harness.work() {
                break;
            }
        }
        assert_eq!(harness.run().state, RunState::Finished, "known={known}");
        assert_eq!(batches(&harness)[before..], asked(5, 10)[2..], "known={known}");
    }
}

#[test]
fn invalid_domains_are_refused() {
    let good = serde_json::to_value(mixed(4, 10, "alpha = 1")).expect("a run file");
    let counter = serde_json::json!({ "name": "counter", "turns": 0 });
    let many = vec![good["domains"][0].clone(); 1_500].into();
    for (pointer, value, field, remedy) in [
        ("/domains/1/name", serde_json::json!("math"), "domains[1].name", "another domain has this name"),
        ("/domains/0/share", serde_json::json!(0.0), "domains[0].share", "0.000001"),
        ("/domains/0/share", serde_json::json!(-1.0), "domains[0].share", "0.000001"),
        ("/domains/0/share", serde_json::json!(1e300), "domains[0].share", "0.000001"),
        ("/domains/2/max_new_tokens", serde_json::json!(0), "domains[2].max_new_tokens", "from 1"),
        ("/domains/1/environment", counter, "domains[1].environment.turns", "from 1"),
        ("/domains/1/rewards", serde_json::json!([]), "domains[1].rewards", "1 to"),
        ("/rollout/alpha", serde_json::json!(0.5), "rollout.alpha", "whole number"),
        (
            "/domains/0/environment",
            serde_json::json!({ "name": "sokoban" }),
            "rollout.actions_only",
            "choose false",
        ),
        ("/domains", serde_json::json!([]), "environment", "several [[domains]]"),
        // Neither is dealt before it is refused, which would take hours.
        ("/evaluate/prompts", serde_json::json!(u32::MAX), "evaluate.prompts", "to 65536"),
        ("/domains", many, "domains", "at most 64"),
    ] {
        let mut file = good.clone();
        match file.pointer_mut(pointer) {
            Some(place) => *place = value.clone(),
            None => file.pointer_mut("/domains/2").expect("a domain")["max_new_tokens"] = value.clone(),
        }
        let error =
            millrace_schemas::submit::from_json(file.to_string().as_bytes()).expect_err(pointer).to_string();
        assert!(error.contains(&format!("{field} = ")) && error.contains(remedy), "{pointer}: {error}");
    }
    let mut both = good.clone();
    both["environment"] = serde_json::json!({ "name": "counter", "turns": 1 });
    let error =
        millrace_schemas::submit::from_json(both.to_string().as_bytes()).expect_err("both").to_string();
    assert!(error.contains("environment = one, and domains too"), "{error}");
    let one = serde_json::to_value(spec("alpha = 1")).expect("a run file");
    assert!(one.get("domains").is_none(), "a run file of before keeps its hash");
}
