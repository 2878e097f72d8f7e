use super::*;
use millrace_policy::NoPast;
use millrace_schemas::RolloutId;
use millrace_schemas::generate::{Sampling, Segment};
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::train_shard::Batch;
use millrace_schemas::{BlobRef, submit::Algorithm};

fn loaded(version: u64, trained: Trained) -> LoadedVersion {
    let manifest = Manifest {
        run: "r".parse().unwrap(),
        version: PolicyVersion(version),
        parent: None,
        batch: None,
        config: Sha::of(b""),
        files: Vec::new(),
        metrics: BTreeMap::new(),
    };
    LoadedVersion {
        version: PolicyVersion(version),
        sha: Sha::of(&manifest.to_json()),
        manifest,
        files: trained.files,
    }
}

fn first(version: u64) -> LoadedVersion {
    loaded(version, ScriptedTrainer.initialise(&ModelSpec::Scripted, 1).unwrap())
}

fn request(ticket: u64, seed: u64, max_new_tokens: u32) -> EngineRequest {
    EngineRequest {
        ticket: Ticket(ticket),
        rollout: RolloutId { group: 0, index: 0, attempt: 0 },
        task: GenerateTask::new(vec![5], max_new_tokens, Sampling::at(1.0), seed),
    }
}

fn sample(engine: &mut ScriptedEngine, requests: Vec<EngineRequest>) -> BTreeMap<Ticket, GenerateDone> {
    let expected = requests.len();
    requests.into_iter().for_each(|request| engine.admit(request));
    let mut done = BTreeMap::new();
    while done.len() < expected {
        done.extend(engine.step().unwrap().into_iter().map(|f| (f.ticket, f.result.unwrap())));
    }
    done
}

#[test]
fn a_turn_depends_on_its_seed_and_not_on_the_batch() {
    let mut engine = ScriptedWeights::read(&first(3)).unwrap().engine();
    let alone = sample(&mut engine, vec![request(0, 9, 6)]);
    let together = sample(&mut engine, vec![request(0, 9, 6), request(1, 10, 3), request(2, 11, 8)]);
    assert_eq!(alone[&Ticket(0)], together[&Ticket(0)]);
    assert_ne!(together[&Ticket(0)].tokens[..3], together[&Ticket(1)].tokens[..]);
    for done in together.values() {
        done.check().unwrap();
    }
}

#[test]
fn only_allowed_tokens_are_drawn() {
    let mut engine = ScriptedWeights::read(&first(0)).unwrap().engine();
    let mut request = request(0, 9, 200);
    request.task.sampling.sample_below = Some(4);
    let done = &sample(&mut engine, vec![request])[&Ticket(0)];
    done.check().unwrap();
    let drawn: std::collections::BTreeSet<u32> = done.tokens.iter().copied().collect();
    assert_eq!(drawn, [0, 1, 2, 3].into());
}

#[test]
fn segments_say_which_version_sampled() {
    let mut engine = ScriptedWeights::read(&first(3)).unwrap().engine();
    engine.admit(request(0, 9, 5));
    for _ in 0..2 {
        assert!(engine.step().unwrap().is_empty());
    }
    engine.swap(Box::new(ScriptedWeights::read(&first(4)).unwrap())).unwrap();
    let done = sample(&mut engine, Vec::new());
    assert!(done.is_empty());
    let mut ended = Vec::new();
    while ended.is_empty() {
        ended = engine.step().unwrap();
    }
    let done = ended.remove(0).result.unwrap();
    let segment = |version, tokens| Segment { version: PolicyVersion(version), tokens };
    assert_eq!(done.segments, [segment(3, 2), segment(4, 3)]);
    done.check().unwrap();
    done.check_versions(PolicyVersion(3), PolicyVersion(4)).unwrap();
}

#[test]
fn answers_get_better_with_the_version() {
    let right = |version| {
        let mut engine = ScriptedWeights::read(&first(version)).unwrap().engine();
        let requests = (0..2000).map(|i| request(i, i, 1)).collect();
        sample(&mut engine, requests).values().filter(|done| done.tokens == [6]).count()
    };
    let (early, late) = (right(0), right(30));
    assert!((300..500).contains(&early), "early={early}");
    assert!((1650..1850).contains(&late), "late={late}");
}

#[test]
fn a_step_done_twice_shows_in_the_weights() {
    let batch = |seed| Batch {
        run: "r".parse().unwrap(),
        base: PolicyVersion(0),
        manifest: Sha::of(b""),
        config: Sha::of(b""),
        seed,
        temperature: 1.0,
        sample_below: None,
        groups: Vec::new(),
    };
    let step = |base: &LoadedVersion, seed| {
        let batch = batch(seed);
        let blob = BlobRef::of(&millrace_schemas::envelope::encode(&batch));
        let algorithm = Algorithm::default();
        ScriptedTrainer
            .step(
                base,
                &TrainStep {
                    batch: &batch,
                    blob,
                    algorithm: &algorithm,
                    reference: None,
                    assignment: None,
                    checkpoint: true,
                    past: &NoPast,
                },
            )
            .unwrap()
    };
    let zero = first(0);
    let one = loaded(1, step(&zero, 1));
    assert_eq!(one.files, step(&zero, 1).files, "the same step gives the same weights");
    assert_ne!(step(&one, 1).files, one.files, "the step done twice");
    assert_ne!(step(&one, 2).files, step(&zero, 2).files, "a step left out");
}
