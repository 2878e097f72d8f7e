//! Rules that learn nothing, played on held-out prompts by the environments' own code. A policy has
//! learned what it solves beyond the best of them.

use std::collections::BTreeMap;

use millrace_policy::random::Stream;
use millrace_schemas::env_step::{EnvStepDone, EnvStepTask, EnvironmentSpec};
use millrace_schemas::report::{Baseline, clustered_error};

use super::{EnvError, Environment, FrozenLake, Sokoban};

/// Episodes of uniformly random play for each prompt: chance needs more of them than a rule does.
const RANDOM_EPISODES: u32 = 8;

/// A grid game that rules can be played on.
pub(super) trait Game: Environment {
    /// The reflexes in words: without memory, and with it.
    const REFLEXES: [&'static str; 2];

    /// The action of a rule that looks one move ahead, tries moves in `order` and, with `visits`,
    /// prefers the place that it was at least often.
    fn reflex(&self, state: &[u8], order: [u32; 4], visits: Option<&mut Visits>) -> Result<u32, EnvError>;

    /// The first action of a shortest path to the goal.
    fn shortest_path(&self, state: &[u8]) -> Result<u32, EnvError>;

    /// The action of the best policy where a move may go astray; `None` where none does, so that a
    /// shortest path is best.
    fn best_action(&self, _state: &[u8]) -> Result<Option<u32>, EnvError> {
        Ok(None)
    }
}

/// How often each place was visited in an episode.
pub(super) type Visits = BTreeMap<u64, u32>;

/// Every order of the four moves.
fn orders() -> Vec<[u32; 4]> {
    let all = (0..256u32).map(|n| [n & 3, n >> 2 & 3, n >> 4 & 3, n >> 6]);
    all.filter(|order| (0..4).all(|action| order.contains(&action))).collect()
}

/// Plays every rule on the prompts that `resets` ask for. Empty where the environment has no rules.
///
/// # Errors
/// A start state cannot be drawn.
pub fn play(resets: &[EnvStepTask]) -> Result<Vec<Baseline>, EnvError> {
    match resets.first().map(|task| &task.environment) {
        Some(EnvironmentSpec::FrozenLake(spec)) => all(&FrozenLake(*spec), resets),
        Some(EnvironmentSpec::Sokoban(spec)) => all(&Sokoban(*spec), resets),
        _ => Ok(Vec::new()),
    }
}

fn all<G: Game>(game: &G, resets: &[EnvStepTask]) -> Result<Vec<Baseline>, EnvError> {
    let starts = resets.iter().map(|task| game.reset(task.split, task.seed));
    let starts: Vec<EnvStepDone> = starts.collect::<Result<_, _>>()?;
    let mut stream = Stream::new(1);
    let random = tally(game, &starts, RANDOM_EPISODES, |_, _| Ok(stream.below(4) as u32))?;
    let shortest = tally(game, &starts, 1, |state, _| game.shortest_path(state))?;
    let [memoryless, remembering] = G::REFLEXES;
    let mut rules = vec![
        Baseline { name: "random".into(), rule: "each action as likely".into(), ..random },
        Baseline { name: "memoryless_reflex".into(), rule: memoryless.into(), ..best(game, &starts, false)? },
        Baseline { name: "reflex".into(), rule: remembering.into(), ..best(game, &starts, true)? },
        Baseline {
            name: "shortest_path".into(),
            rule: "the first move of a shortest path, found again each turn".into(),
            ..shortest
        },
    ];
    rules.extend(best_policy(game, &starts)?);
    Ok(rules)
}

/// The best policy, where it is another than a shortest path.
fn best_policy(game: &impl Game, starts: &[EnvStepDone]) -> Result<Option<Baseline>, EnvError> {
    let Some(start) = starts.first() else { return Ok(None) };
    if game.best_action(&start.state)?.is_none() {
        return Ok(None);
    }
    let best = tally(game, starts, 1, |state, _| Ok(game.best_action(state)?.unwrap_or_default()))?;
    Ok(Some(Baseline {
        name: "best_policy".into(),
        rule: "value iteration over the turns left, which knows where the ice may lead and not where it will"
            .into(),
        ..best
    }))
}

/// The reflex of the order that does best on these very prompts: what is above it is above every
/// order.
fn best(game: &impl Game, starts: &[EnvStepDone], remembers: bool) -> Result<Baseline, EnvError> {
    let mut best = Baseline::default();
    for order in orders() {
        let reached =
            tally(game, starts, 1, |state, visits| game.reflex(state, order, remembers.then_some(visits)))?;
        if best.prompts == 0 || reached.success > best.success {
            best = reached;
        }
    }
    Ok(best)
}

/// Plays one rule from each start.
fn tally(
    game: &impl Game,
    starts: &[EnvStepDone],
    episodes: u32,
    mut rule: impl FnMut(&[u8], &mut Visits) -> Result<u32, EnvError>,
) -> Result<Baseline, EnvError> {
    let mut prompts: BTreeMap<&[u32], (u32, u32)> = BTreeMap::new();
    for start in starts {
        for _ in 0..episodes {
            let (mut now, mut visits) = (start.clone(), Visits::new());
            while !now.done {
                let action = rule(&now.state, &mut visits)?;
                now = game.step(&now.state, &[action])?;
            }
            let prompt = prompts.entry(&start.observation).or_default();
            *prompt = (prompt.0 + 1, prompt.1 + u32::from(now.success));
        }
    }
    let sum = |of: fn(&(u32, u32)) -> u32| prompts.values().map(of).sum::<u32>();
    let (played, solved) = (sum(|prompt| prompt.0), sum(|prompt| prompt.1));
    Ok(Baseline {
        success: f64::from(solved) / f64::from(played.max(1)),
        standard_error: clustered_error(prompts.values().copied()).unwrap_or(0.0),
        prompts: starts.len() as u32,
        distinct: prompts.len() as u32,
        ..Baseline::default()
    })
}

/// The first in `order` of the moves with the least rank; the last of them where none is allowed.
pub(super) fn least<R: Ord>(order: [u32; 4], mut rank: impl FnMut(u32) -> Option<R>) -> u32 {
    let ranked = order.into_iter().filter_map(|action| Some((rank(action)?, action)));
    // Of equal ranks the first wins, which is the first in the order.
    ranked.min_by(|a, b| a.0.cmp(&b.0)).map_or(order[3], |(_, action)| action)
}

#[cfg(test)]
mod tests;
