use super::*;
use crate::spec::ScalingFile;

fn pool(stages: &str) -> PoolSpec {
    let text = format!("[[pool]]\nname = \"a\"\nstages = [{stages}]\nmax = 1000\nstep = 4\n");
    ScalingFile::parse(&text).unwrap().pools.remove(0)
}

/// A run whose batches have 100 rollouts of 5 turns, α = 1, with the next batch still to be played.
fn demand() -> Demand {
    Demand {
        run: Some("lake".parse().unwrap()),
        ranks: 1,
        batch_rollouts: 100,
        steps_left: 50,
        outstanding: BTreeMap::from([(Stage::Generate, 100)]),
        per_rollout: BTreeMap::from([(Stage::Generate, 5.0), (Stage::EnvStep, 6.0), (Stage::Reward, 1.0)]),
        ..Demand::default()
    }
}

fn supply(per_s: f64) -> Supply {
    Supply {
        workers: 1,
        per_s: BTreeMap::from([(Stage::Generate, per_s)]),
        slots: BTreeMap::new(),
        start_up_s: (5.0, 0.0),
    }
}

const BUSY: Pace = Pace { step_s: Some(10.0), elapsed_s: 0.0, tasks: BTreeMap::new() };

fn training(demand: Demand) -> Demand {
    Demand { makes: Some(PolicyVersion(3)), ..demand }
}

#[test]
fn a_pool_is_as_large_as_keeps_the_trainer_busy() {
    // 100 rollouts of 5 turns in the 10 s of a step: 50 turns a second, 10 a worker.
    let need = plan(&pool("\"generate\""), &[(training(demand()), BUSY)], &supply(10.0), 1);
    assert_eq!(need.workers, 6, "{need:?}");
    assert_eq!(need.reason.cause, ScaleCause::Budget);
    let budget = need.reason.budget.unwrap();
    assert_eq!((budget.missing_rollouts, budget.due_s, budget.needed_per_s), (100, 10.0, 50.0));
}

#[test]
fn a_trainer_that_waits_makes_a_pool_at_most_twice_as_large() {
    let need = plan(&pool("\"generate\""), &[(demand(), BUSY)], &supply(10.0), 1);
    assert_eq!(need.workers, 12, "{need:?}");
}

#[test]
fn what_rollouts_in_play_have_behind_them_is_not_missing() {
    // The trainer waits for 100 rollouts, which have 2 of their 5 turns: 300 turns in 5 s.
    let waits = Demand { played: 0.4, ..demand() };
    let need = plan(&pool("\"generate\""), &[(waits, BUSY)], &supply(10.0), 1);
    assert_eq!(need.workers, 7, "{need:?}");
    // With less than that, what keeps the trainer busy in the long run counts.
    let waits = Demand { played: 1.0, ..demand() };
    let need = plan(&pool("\"generate\""), &[(waits, BUSY)], &supply(10.0), 1);
    assert_eq!(need.workers, 6, "{need:?}");
}

#[test]
fn a_pool_is_small_while_the_trainer_is_the_bottleneck() {
    // A whole batch waits, and another is in training: the window is full.
    let demand = Demand { ready_rollouts: 100, outstanding: BTreeMap::new(), ..training(demand()) };
    let need = plan(&pool("\"generate\""), &[(demand.clone(), BUSY)], &supply(10.0), 6);
    assert_eq!(need.workers, 0, "{need:?}");
    let waits = Demand { outstanding: BTreeMap::from([(Stage::Generate, 1)]), ..demand.clone() };
    let slots = Supply { slots: BTreeMap::from([(Stage::Generate, 16)]), ..supply(10.0) };
    assert_eq!(plan(&pool("\"generate\""), &[(waits, BUSY)], &slots, 6).workers, 1);
    // Ten times as long a step.
    let slow = Pace { step_s: Some(100.0), ..BUSY };
    assert_eq!(plan(&pool("\"generate\""), &[(training(self::demand()), slow)], &supply(10.0), 6).workers, 1);
}

#[test]
fn what_is_finished_at_the_moment_does_not_shrink_the_pool() {
    // Each step consumes 100 rollouts, whatever is ready in its middle.
    for ready_rollouts in [0, 50, 100] {
        let demand = Demand { ready_rollouts, ..training(demand()) };
        assert_eq!(plan(&pool("\"generate\""), &[(demand, BUSY)], &supply(10.0), 6).workers, 6);
    }
}

#[test]
fn rollouts_that_all_wait_for_their_environments_are_still_to_be_sampled() {
    let mut runs = Runs::default();
    let (now, slots) =
        (Instant::now(), Supply { slots: BTreeMap::from([(Stage::Generate, 10)]), ..supply(10.0) });
    let at_work = |stage: Stage| Demand {
        outstanding: [Stage::Generate, Stage::EnvStep]
            .map(|of| (of, if of == stage { 100 } else { 0 }))
            .into(),
        ready_rollouts: 100,
        ..training(demand())
    };
    let mut needs = Vec::new();
    for second in 0..20 {
        let stage = if second % 2 == 0 { Stage::Generate } else { Stage::EnvStep };
        let demands = [at_work(stage)];
        let paces = runs.paces(&demands, Some(10.0), now + Duration::from_secs(5 * second));
        let pairs: Vec<_> = demands.into_iter().zip(paces).collect();
        needs.push(plan(&pool("\"generate\""), &pairs, &slots, 6).workers);
    }
    assert_eq!(needs, [6; 20]);
    // Ten minutes without one are no coincidence.
    let demands = [at_work(Stage::EnvStep)];
    let paces = runs.paces(&demands, Some(10.0), now + Duration::from_secs(700));
    let pairs: Vec<_> = demands.into_iter().zip(paces).collect();
    assert_eq!(plan(&pool("\"generate\""), &pairs, &slots, 6).workers, 0);
}

#[test]
fn the_need_grows_as_the_step_nears_its_end() {
    let needs = [0.0, 4.0, 8.0].map(|elapsed_s| {
        let pace = Pace { elapsed_s, ..BUSY };
        plan(&pool("\"generate\""), &[(training(demand()), pace)], &supply(10.0), 1).workers
    });
    assert_eq!(needs, [6, 10, 12]);
}

#[test]
fn no_capacity_is_bought_whose_work_would_be_dropped() {
    // 100 tasks fill the slots of 10 workers, however slow these are.
    let slots = Supply { slots: BTreeMap::from([(Stage::Generate, 10)]), ..supply(0.01) };
    let need = plan(&pool("\"generate\""), &[(demand(), BUSY)], &slots, 1);
    assert_eq!((need.workers, need.reason.limit), (15, Some(ScaleLimit::Tasks)));
    // The last step: what is in the window beyond its batch would never be trained.
    let last = Demand { steps_left: 1, ready_rollouts: 99, ..demand() };
    let need = plan(&pool("\"generate\""), &[(last, BUSY)], &supply(10.0), 0);
    assert_eq!(need.workers, 1);
    let over = Demand { steps_left: 0, outstanding: BTreeMap::new(), ..training(demand()) };
    assert_eq!(plan(&pool("\"generate\""), &[(over, BUSY)], &supply(10.0), 3).workers, 0);
}

#[test]
fn a_worker_that_would_be_ready_too_late_is_not_started() {
    let soon_over = Demand { steps_left: 1, ..demand() };
    let slow_start = Supply { start_up_s: (120.0, 30.0), ..supply(10.0) };
    let need = plan(&pool("\"generate\""), &[(soon_over, BUSY)], &slow_start, 2);
    assert_eq!((need.workers, need.reason.limit), (2, Some(ScaleLimit::StartUp)));
}

#[test]
fn environments_and_inference_scale_apart() {
    let demands = [(training(demand()), BUSY)];
    let outstanding = BTreeMap::from([(Stage::EnvStep, 100)]);
    let demands = [(Demand { outstanding, ..demands[0].0.clone() }, BUSY)];
    let slow = BTreeMap::from([(Stage::EnvStep, 2.0), (Stage::Reward, 1_000.0)]);
    let supply = Supply { per_s: slow, ..supply(10.0) };
    let need = plan(&pool("\"env_step\", \"reward\""), &demands, &supply, 1);
    // 600 steps in 10 s, 2 a worker, and a little for the rewards.
    assert_eq!(need.workers, 34, "{need:?}");
}

#[test]
fn a_gang_has_its_ranks_while_a_run_works() {
    let two = Demand { ranks: 2, starting: true, ..Demand::default() };
    let need = plan(&pool("\"train_shard\", \"publish_weights\""), &[(two, BUSY)], &supply(1.0), 0);
    assert_eq!((need.workers, need.reason.cause), (2, ScaleCause::Gang));
    let none = plan(&pool("\"train_shard\""), &[], &supply(1.0), 2);
    assert_eq!((none.workers, none.reason.cause), (0, ScaleCause::NoRun));
}

#[test]
fn before_anything_is_measured_a_pool_starts_with_a_step() {
    let unknown = Supply { per_s: BTreeMap::new(), ..supply(1.0) };
    let first = Demand { per_rollout: BTreeMap::new(), ..demand() };
    let untrained = Pace::default();
    let need = plan(&pool("\"generate\""), &[(first, untrained.clone())], &unknown, 0);
    assert_eq!((need.workers, need.reason.cause), (4, ScaleCause::Unmeasured));
    let starting =
        Demand { starting: true, outstanding: BTreeMap::new(), per_rollout: BTreeMap::new(), ..demand() };
    let need = plan(&pool("\"generate\""), &[(starting, untrained)], &unknown, 0);
    assert_eq!((need.workers, need.reason.cause), (4, ScaleCause::Starting));
}

#[test]
fn the_next_step_waits_for_an_evaluation_and_so_it_is_played_soon() {
    let evaluating = Demand { evaluating: true, ready_rollouts: 100, ..demand() };
    let played = plan(&pool("\"generate\""), &[(evaluating, BUSY)], &supply(10.0), 1);
    assert!(played.workers >= 12, "{played:?}");
}
