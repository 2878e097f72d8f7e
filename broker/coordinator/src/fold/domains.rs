//! The domains of a run that has several: which domain the next group belongs to, how many groups
//! of each a batch takes, and each domain's status.
//!
//! The mix assigns places, not groups. A place that is assigned to a domain stays with it: when a
//! group is dropped, another of the same domain takes its place. So the trained mix is the
//! configured one, even if many groups of one domain are filtered or lost.

use millrace_schemas::api::{DomainStatus, Ledger};
use millrace_schemas::submit::{DomainSpec, mix};

use crate::fold::books::{DomainBooks, MAX_EVALUATIONS, by_reason, thinned};
use crate::fold::state::Run;

/// Assigns domains and prompts to groups that are admitted one after another.
#[derive(Debug)]
pub(crate) struct Dealer {
    /// Groups of each domain that hold a place: playing, finished, in training or trained. Empty
    /// for a run with one domain.
    held: Vec<u64>,
}

impl Dealer {
    pub(crate) fn of(run: &Run) -> Self {
        let mut held: Vec<u64> = run.books.domains.iter().map(|domain| domain.groups).collect();
        if !held.is_empty() {
            for group in run.groups_in_flight() {
                held[group.domain as usize] += 1;
            }
        }
        Self { held }
    }

    /// The domain of the next group and its prompt's number within that domain.
    pub(crate) fn next(&mut self, run: &mut Run) -> (u32, u64) {
        let number = run.next_prompt;
        run.next_prompt += 1;
        if self.held.is_empty() {
            return (0, number);
        }
        let vacant =
            run.books.domains.iter().zip(&self.held).position(|(domain, held)| domain.places > *held);
        let domain = vacant.unwrap_or_else(|| self.open(run));
        self.held[domain] += 1;
        let prompt = run.books.domains[domain].prompts;
        run.books.domains[domain].prompts += 1;
        (domain as u32, prompt)
    }

    /// Assigns places until one is vacant. Returns its domain.
    fn open(&self, run: &mut Run) -> usize {
        let shares = run.spec.shares();
        let mut places: Vec<u64> = run.books.domains.iter().map(|domain| domain.places).collect();
        loop {
            let domain = mix::deal(&shares, &mut places);
            run.books.domains[domain].places = places[domain];
            if places[domain] > self.held[domain] {
                return domain;
            }
        }
    }
}

/// How many groups of each domain the next batch takes: those whose places come next. Since earlier
/// batches took theirs, the trained mix follows the places exactly.
#[must_use]
pub fn room(run: &Run) -> Vec<u64> {
    let batch = u64::from(run.spec.rollout.groups_per_step);
    if run.books.domains.is_empty() {
        return vec![batch];
    }
    let shares = run.spec.shares();
    let trained: Vec<u64> = run.books.domains.iter().map(|domain| domain.groups).collect();
    let mut dealt = trained.clone();
    for _ in 0..batch {
        mix::deal(&shares, &mut dealt);
    }
    dealt.iter().zip(&trained).map(|(dealt, trained)| dealt - trained).collect()
}

/// The newest group in play of a domain that has more groups than places; `None` if it has not.
pub(crate) fn beyond_its_places(run: &Run, domain: u32) -> Option<u64> {
    let held = Dealer::of(run).held;
    let places = run.books.domains.get(domain as usize)?.places;
    let newest = run.groups.iter().rev().find(|(_, group)| group.domain == domain).map(|(id, _)| *id);
    newest.filter(|_| held[domain as usize] > places)
}

/// Status by domain; empty for a run with one. Rollouts in flight are counted from the groups, so
/// that a balanced ledger is evidence.
#[must_use]
pub fn statuses(run: &Run) -> Vec<DomainStatus> {
    let shares = run.spec.shares();
    let total: u64 = shares.iter().sum();
    let status = |((domain, spec), (share, number)): ((&DomainBooks, &DomainSpec), (u64, u32))| {
        let flying = run.groups_in_flight().filter(|group| group.domain == number);
        let mean = |sum: f64| sum / domain.trained.max(1) as f64;
        let (last_success, last_reward) = domain.last.unzip();
        DomainStatus {
            name: spec.name.clone(),
            share: share as f64 / total as f64,
            groups: domain.groups,
            success: mean(domain.solved as f64),
            reward: mean(domain.reward),
            last_success,
            last_reward,
            staleness: domain.staleness.clone(),
            ledger: Ledger {
                admitted: domain.admitted,
                trained: domain.trained,
                dropped: by_reason(&domain.dropped),
                in_flight: flying.map(|group| group.rollouts.len() as u64).sum(),
            },
            evaluations: thinned(&domain.evaluations, MAX_EVALUATIONS / run.spec.domains.len().max(1)),
        }
    };
    run.books.domains.iter().zip(&run.spec.domains).zip(shares.into_iter().zip(0..)).map(status).collect()
}
