use millrace_schemas::plan::Spread;

use super::*;

const fn constant(value: f64) -> Spread {
    Spread::LogNormal { median: value, sigma: 0.0, most: value }
}

/// Six GPUs, 48 rollouts of 1,000 tokens with a tail.
fn small(train_gpu_s: f64) -> PlanRequest {
    PlanRequest {
        run: "small".into(),
        gpus: 6,
        least_trainers: 1,
        alphas: vec![0.0, 1.0],
        groups: 12,
        group_size: 4,
        redundant_groups: 0,
        patience_s: 0,
        turns: constant(1.0),
        tokens: Spread::LogNormal { median: 1_000.0, sigma: 0.7, most: 8_192.0 },
        slots: 8,
        slot_tokens_per_s: 50.0,
        lone_tokens_per_s: 100.0,
        env_s: constant(0.5),
        reward_s: 0.0,
        train_gpu_s,
        train_step_s: 1.0,
        load_s: 0.5,
        seed: 1,
        assumptions: vec![],
        measured: None,
    }
}

/// Every split at this async ratio.
fn sweep(request: &PlanRequest, alpha: f64) -> Vec<Split> {
    let splits = 1..=request.gpus - request.least_trainers;
    let division = |generate| Division { generate, train: request.gpus - generate, both: 0, alpha };
    let whole = Scale::whole(request);
    all(splits.map(|generate| move || whole.play(request, division(generate)))).unwrap()
}

/// The search against all splits, where generation decides, training does, and neither.
#[test]
fn the_plan_is_as_good_as_an_exhaustive_sweep() {
    for train_gpu_s in [2.0, 60.0, 600.0] {
        let request = small(train_gpu_s);
        let plan = Plan::of(&request).unwrap();
        let swept: Vec<Split> = request.alphas.iter().flat_map(|alpha| sweep(&request, *alpha)).collect();
        let best_s = swept.iter().map(|split| split.step_s).fold(f64::INFINITY, f64::min);
        let step_s = plan.recommended.step_s;
        assert!(step_s <= 1.03 * best_s, "train_gpu_s={train_gpu_s}: {step_s} against {best_s}");
        let best_of =
            |alpha: f64| swept.iter().filter(move |split| split.alpha == alpha).min_by(|a, b| a.quicker(b));
        for found in &plan.by_alpha {
            let best = best_of(found.alpha).unwrap();
            assert!(found.step_s <= 1.01 * best.step_s, "{found:?} against {best:?}");
        }
        // It never loses to the rule that knows nothing.
        assert!(step_s <= plan.half_and_half.step_s, "{:?}", plan.half_and_half);
    }
}

#[test]
fn whatever_dominates_gets_the_gpus() {
    let generates = Plan::of(&small(2.0)).unwrap().recommended;
    assert_eq!((generates.generate, generates.train), (5, 1), "{generates:?}");
    let plan = Plan::of(&small(1_200.0)).unwrap();
    let trains = &plan.recommended;
    assert_eq!((trains.generate, trains.train), (1, 5), "{trains:?}");
    // Training takes 1,200 GPU-seconds over five GPUs and a second, and that is the step; half of the GPUs
    // take 401 s. Another GPU that generates brings nothing, one that trains a sixth.
    assert!((trains.step_s - 241.0).abs() < 3.0, "{trains:?}");
    assert!(trains.trainers_idle < 0.05 && trains.generators_idle > 0.2, "{trains:?}");
    assert!((plan.half_and_half.step_s - 401.0).abs() < 3.0, "{:?}", plan.half_and_half);
    assert!((plan.one_more_generates.step_s / trains.step_s - 1.0).abs() < 0.01);
    assert!((plan.one_more_trains.step_s - 201.0).abs() < 3.0, "{:?}", plan.one_more_trains);
}

#[test]
fn asynchrony_is_recommended_where_it_gains_and_not_where_it_does_not() {
    let plan = Plan::of(&small(60.0)).unwrap();
    assert_eq!(plan.recommended.alpha, 1.0, "{:?}", plan.by_alpha);
    assert!(plan.recommended.mean_staleness() > 0.3, "{:?}", plan.recommended);
    // Forty equal rollouts fill the slots of five GPUs for 200 s, and training takes no time: there is
    // nothing to overlap.
    let even = PlanRequest {
        groups: 10,
        tokens: constant(10_000.0),
        lone_tokens_per_s: 50.0,
        train_step_s: 0.0,
        load_s: 0.0,
        ..small(0.0)
    };
    let plan = Plan::of(&even).unwrap();
    assert_eq!(plan.recommended.alpha, 0.0, "{:?}", plan.by_alpha);
    assert_eq!(plan.recommended.staleness, [1.0]);
}

/// A batch that is too large for a first look is looked at in part, and decided on the whole.
#[test]
fn a_large_batch_is_searched_in_part_and_decided_as_a_whole() {
    let request = PlanRequest { groups: 96, slots: 64, alphas: vec![1.0], ..small(120.0) };
    assert!(Scale::coarse(&request) != Scale::whole(&request));
    let plan = Plan::of(&request).unwrap();
    let swept = sweep(&request, 1.0);
    let best_s = swept.iter().map(|split| split.step_s).fold(f64::INFINITY, f64::min);
    assert!(plan.recommended.step_s <= 1.01 * best_s, "{plan:?} {swept:?}");
    assert!(swept.contains(&plan.recommended), "{plan:?} {swept:?}");
}

#[test]
fn the_same_request_has_the_same_plan() {
    let plan = || {
        let plan = Plan { took_s: 0.0, ..Plan::of(&small(60.0)).unwrap() };
        serde_json::to_string(&plan).unwrap()
    };
    assert_eq!(plan(), plan());
}

#[test]
fn the_page_has_what_a_person_decides_by() {
    let measured = Some(MeasuredSplit { generate: 2, train: 4, alpha: 1.0, step_s: 40.0 });
    let request = PlanRequest { measured, assumptions: vec!["everything".into()], ..small(60.0) };
    let page = page::page(&Plan::of(&request).unwrap());
    for words in [
        "small, 6 GPUs: ",
        "idle         generate",
        "one more     GPU that generates: ",
        "GPU that trains: ",
        "the measured run, 2 + 4 at alpha = 1: 40.0 s a step; simulated ",
        "(half and half)",
        "in turn, 0 (synchronous)",
        "- everything",
        "runs on the real coordinator",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
}
