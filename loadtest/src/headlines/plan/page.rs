//! A plan for people.

use std::fmt::Write;

use super::split::Split;
use super::{CLOSE_ENOUGH, Check, Plan};

/// The plan as text.
pub(super) fn page(plan: &Plan) -> String {
    let best = &plan.recommended;
    let mut page = format!(
        "{}, {} GPUs: {} generate, {} train, alpha = {}\n",
        plan.run, plan.gpus, best.generate, best.train, best.alpha
    );
    let mut line = |label: &str, words: String| {
        let _ = writeln!(page, "  {label:<12} {words}");
    };
    line("step", format!("{} expected", seconds(best.step_s)));
    line(
        "idle",
        format!(
            "generate {}, train {}; {} of the slots decode",
            percent(best.generators_idle),
            percent(best.trainers_idle),
            percent(best.slots_filled)
        ),
    );
    line("staleness", format!("{} versions on average ({})", digits(best.mean_staleness()), histogram(best)));
    line("dropped", format!("{} of the rollouts begun", percent(best.dropped)));
    for (label, more) in [("one more", &plan.one_more_generates), ("", &plan.one_more_trains)] {
        line(label, one_more(best, more));
    }
    if let Some(check) = &plan.check {
        line("check", checked(check));
    }
    let head = ("GPUs that generate + train, alpha", "s a step", "", "idle: generate, train", "dropped");
    let _ = writeln!(page, "\n  {:<36} {:>9} {:>9}   {:>21} {:>9}", head.0, head.1, head.2, head.3, head.4);
    for (label, split) in rows(plan) {
        let _ = writeln!(page, "  {:<36} {}", label, row(split, best));
    }
    let _ = writeln!(
        page,
        "\n  The least alpha within {:.0} % of the fastest is recommended: staleness costs learning, which is not \
         simulated.",
        100.0 * (CLOSE_ENOUGH - 1.0)
    );
    page += "\n  Assumed:\n";
    for assumption in &plan.assumptions {
        let _ = writeln!(page, "  - {assumption}");
    }
    let _ = write!(
        page,
        "\n  {} runs on the real coordinator and queue in virtual time, in {:.1} s (seed {})",
        plan.simulated, plan.took_s, plan.seed
    );
    page
}

/// Every split that is worth a line, each once.
fn rows(plan: &Plan) -> Vec<(String, &Split)> {
    let name = |split: &Split, note: &str| {
        let note = if note.is_empty() { String::new() } else { format!(" ({note})") };
        format!("{} + {}, {}{note}", split.generate, split.train, split.alpha)
    };
    let mut rows = vec![(name(&plan.recommended, "recommended"), &plan.recommended)];
    rows.extend(plan.runners_up.iter().map(|split| (name(split, ""), split)));
    let others = plan.by_alpha.iter().filter(|split| split.alpha != plan.recommended.alpha);
    rows.extend(others.map(|split| (name(split, "its best"), split)));
    rows.push((name(&plan.half_and_half, "half and half"), &plan.half_and_half));
    rows.push((format!("{} in turn, 0 (synchronous)", plan.in_turn.both), &plan.in_turn));
    rows
}

fn row(split: &Split, best: &Split) -> String {
    let change = format!("{:+.1} %", 100.0 * (split.step_s / best.step_s - 1.0));
    let idle = format!("{}, {}", percent(split.generators_idle), percent(split.trainers_idle));
    format!("{:>9} {change:>9}   {idle:>21} {:>9}", digits(split.step_s), percent(split.dropped))
}

fn one_more(best: &Split, more: &Split) -> String {
    let verb = if more.generate > best.generate { "generates" } else { "trains" };
    let change = 100.0 * (1.0 - more.step_s / best.step_s);
    let words = if change >= 0.0 { "shorter" } else { "longer" };
    format!("GPU that {verb}: {} a step, {:.1} % {words}", seconds(more.step_s), change.abs())
}

fn checked(Check { measured, simulated }: &Check) -> String {
    let off = 100.0 * (simulated.step_s / measured.step_s - 1.0);
    format!(
        "the measured run, {} + {} at alpha = {}: {} a step; simulated {} ({off:+.0} %)",
        measured.generate,
        measured.train,
        measured.alpha,
        seconds(measured.step_s),
        seconds(simulated.step_s)
    )
}

fn histogram(split: &Split) -> String {
    let shares = split.staleness.iter().enumerate().filter(|(_, share)| **share > 0.0);
    shares.map(|(at, share)| format!("{at}: {}", percent(*share))).collect::<Vec<_>>().join(", ")
}

fn seconds(value: f64) -> String {
    format!("{} s", digits(value))
}

/// Three digits that say something.
fn digits(value: f64) -> String {
    match value {
        _ if value < 1.0 => format!("{value:.3}"),
        _ if value < 20.0 => format!("{value:.2}"),
        _ => format!("{value:.1}"),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}
