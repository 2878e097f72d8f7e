//! Each kind of damage to a sound history must be found.

use millrace_schemas::generate::Segment;
use millrace_schemas::train_shard::{BatchGroup, BatchTurn};
use millrace_schemas::{BlobRef, envelope};

use super::*;

fn rollout(group: u64, index: u32, start: u64) -> BatchRollout {
    let start_version = PolicyVersion(start);
    BatchRollout {
        id: RolloutId { group, index, attempt: 0 },
        start_version,
        reward: 1.0,
        success: true,
        truncated: false,
        tokens: vec![1, 2],
        turns: vec![BatchTurn {
            at: 1,
            logprobs: vec![-0.5],
            segments: vec![Segment { version: start_version, tokens: 1 }],
            reward: 1.0,
        }],
        forks: Vec::new(),
        stored: None,
    }
}

/// Three versions after the first, two rollouts each; every second rollout is one version behind.
fn history() -> Vec<StoredVersion> {
    let run: RunId = "test".parse().unwrap();
    let config = Sha::of(b"config");
    let mut versions: Vec<StoredVersion> = vec![];
    for v in 0..4_u64 {
        let parent = versions.last().map(|stored| stored.sha256);
        let batch = parent.map(|manifest| {
            let base = v - 1;
            let rollouts = vec![rollout(v, 0, base), rollout(v, 1, base.saturating_sub(1))];
            let groups = vec![BatchGroup { group: v, domain: 0, rollouts }];
            Batch {
                run: run.clone(),
                base: PolicyVersion(base),
                manifest,
                config,
                seed: 1,
                temperature: 1.0,
                sample_below: None,
                groups,
            }
        });
        let manifest = Manifest {
            run: run.clone(),
            version: PolicyVersion(v),
            parent,
            batch: batch.as_ref().map(|batch| BlobRef::of(&envelope::encode(batch))),
            config,
            files: vec![],
            metrics: [].into(),
        };
        versions.push(StoredVersion { sha256: Sha::of(&manifest.to_json()), manifest, batch });
    }
    versions
}

fn claim() -> Claim {
    Claim {
        run: "test".parse().unwrap(),
        version: PolicyVersion(3),
        max_staleness: 1,
        trained: 6,
        staleness: vec![4, 2],
    }
}

fn recount(claim: Claim, versions: Vec<StoredVersion>) -> Audit {
    let mut recount = Recount::new(claim);
    for (v, stored) in versions.into_iter().enumerate() {
        recount.count(PolicyVersion(v as u64), Ok(stored));
    }
    recount.finish()
}

/// The one finding of a history damaged by `damage`.
fn finding(damage: impl FnOnce(&mut Vec<StoredVersion>)) -> String {
    let mut versions = history();
    damage(&mut versions);
    let findings = recount(claim(), versions).findings;
    assert_eq!(findings.len(), 1, "{findings:?}");
    findings[0].clone()
}

fn batch(stored: &mut StoredVersion) -> &mut Batch {
    stored.batch.as_mut().unwrap()
}

#[test]
fn a_sound_history_has_no_findings() {
    let audit = recount(claim(), history());
    assert_eq!(audit, Audit { versions: 4, trained: 6, staleness: vec![4, 2], findings: vec![] });
    assert_eq!(audit.max_staleness(), 1);
}

#[test]
fn damage_is_found() {
    assert!(finding(|v| v[2].manifest.parent = Some(Sha::of(b"other"))).contains("not the version before"));
    assert!(finding(|v| v[1].manifest.parent = None).contains("parent=none"));
    assert!(finding(|v| v[3].manifest.version = PolicyVersion(2)).contains("of run=test v2"));
    assert!(finding(|v| batch(&mut v[3]).base = PolicyVersion(3)).contains("base=v3"));
    assert!(finding(|v| batch(&mut v[2]).config = Sha::of(b"x")).contains("another run file"));
    assert!(finding(|v| batch(&mut v[2]).manifest = Sha::of(b"x")).contains("meant for manifest"));
    let twice = finding(|v| {
        batch(&mut v[3]).groups[0].group = 2;
        batch(&mut v[3]).groups[0].rollouts[0].id = RolloutId { group: 2, index: 0, attempt: 1 };
        batch(&mut v[3]).groups[0].rollouts[1].id = RolloutId { group: 2, index: 5, attempt: 0 };
    });
    assert_eq!(twice, "v3: rollout g2r0a1 was trained already, as g2r0a0 for v2");
}

#[test]
fn a_stale_rollout_is_found_even_if_the_books_agree() {
    let mut versions = history();
    batch(&mut versions[3]).groups[0].rollouts[1] = rollout(3, 1, 0);
    let books = Claim { staleness: vec![4, 1, 1], ..claim() };
    let findings = recount(books, versions).findings;
    assert_eq!(findings, ["v3: rollout g3r1a0 has staleness=2, more than 1"]);
}

#[test]
fn a_false_start_version_is_found() {
    let found = finding(|v| {
        batch(&mut v[3]).groups[0].rollouts[0].turns[0].segments[0].version = PolicyVersion(1);
    });
    assert_eq!(found, "v3: rollout g3r0a0 claims to start at v2; its oldest token is v1");
    let found = finding(|v| {
        let later = Segment { version: PolicyVersion(3), tokens: 1 };
        batch(&mut v[3]).groups[0].rollouts[0].turns[0].segments.push(later);
    });
    assert_eq!(found, "v3: rollout g3r0a0 holds tokens of v3, after v2");
}

#[test]
fn books_that_disagree_are_found() {
    let found = recount(Claim { trained: 7, ..claim() }, history()).findings;
    assert_eq!(found, ["the batches hold rollouts=6; the ledger says trained=7"]);
    let found = recount(Claim { staleness: vec![5, 1], ..claim() }, history()).findings;
    assert_eq!(found, ["rollouts by staleness are [4, 2]; the status has [5, 1]"]);
    let found = recount(Claim { staleness: vec![6], ..claim() }, history()).findings;
    assert_eq!(found, ["greatest staleness is 1; the status has 0"]);
}

#[test]
fn a_version_that_cannot_be_read_is_found_once() {
    let mut recount = Recount::new(Claim { trained: 4, staleness: vec![2, 2], ..claim() });
    for (v, stored) in history().into_iter().enumerate() {
        let stored = if v == 1 { Err("no manifest".into()) } else { Ok(stored) };
        recount.count(PolicyVersion(v as u64), stored);
    }
    assert_eq!(recount.finish().findings, ["v1: no manifest"]);
}
