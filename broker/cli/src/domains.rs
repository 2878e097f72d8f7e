//! The domains of a run as text.

use millrace_schemas::api::{DomainStatus, Status};

use super::evaluation::leading;
use super::term::{by_reason, histogram, percent, thousands};

/// Whether the ledgers of the run and of each domain balance, and the domains' add up to the run's.
pub(super) fn balanced(status: &Status) -> bool {
    let sum = |of: fn(&DomainStatus) -> u64| status.domains.iter().map(of).sum::<u64>();
    let whole = &status.ledger;
    whole.balanced()
        && status.domains.iter().all(|domain| domain.ledger.balanced())
        && (status.domains.is_empty()
            || (sum(|domain| domain.ledger.admitted) == whole.admitted
                && sum(|domain| domain.ledger.trained) == whole.trained
                && sum(|domain| domain.ledger.in_flight) == whole.in_flight))
}

/// `math: 40.0 % of 12 groups; reward 0.25, 20.0 % succeeded; held out 10.0 % then 30.0 %; …`.
pub(super) fn words(domain: &DomainStatus) -> String {
    let DomainStatus { name, share, groups, success, reward, ledger, .. } = domain;
    let dropped: u64 = ledger.dropped.values().sum();
    let reasons = if dropped > 0 { format!(" ({})", by_reason(&ledger.dropped)) } else { String::new() };
    let percent_or_none = |success: Option<f64>| success.map_or("none".to_owned(), percent);
    let held_out = match (leading(&domain.evaluations).next(), leading(&domain.evaluations).next_back()) {
        (Some(first), Some(last)) if first.version < last.version => {
            format!("; held out {} then {}", percent_or_none(first.success), percent_or_none(last.success))
        }
        (Some(only), _) => format!("; held out {}", percent_or_none(only.success)),
        (None, _) => String::new(),
    };
    format!(
        "{name}: {} groups trained ({} asked for); reward {reward:.3}, {} succeeded{held_out}; staleness {}; dropped {}{reasons}",
        thousands(*groups),
        percent(*share),
        percent(*success),
        histogram(&domain.staleness),
        thousands(dropped),
    )
}

#[cfg(test)]
mod tests {
    use millrace_schemas::api::Ledger;

    use super::*;
    use crate::sample;

    fn domain(name: &str, trained: u64) -> DomainStatus {
        DomainStatus {
            name: name.parse().unwrap(),
            share: 0.5,
            groups: trained / 2,
            success: 0.25,
            reward: 0.5,
            last_success: None,
            last_reward: None,
            staleness: vec![trained],
            ledger: Ledger {
                admitted: trained + 6,
                trained,
                dropped: [("stale".into(), 1)].into(),
                in_flight: 5,
            },
            evaluations: sample::status(10).evaluations,
        }
    }

    #[test]
    fn a_domain_in_words() {
        let words = words(&domain("math", 20));
        assert_eq!(
            words,
            "math: 10 groups trained (50.0 % asked for); reward 0.500, 25.0 % succeeded; held out 4.0 % then 50.0 %; \
             staleness 0: 100.0 %; dropped 1 (stale 1)"
        );
    }

    #[test]
    fn domains_must_add_up_to_the_run() {
        let mut status = sample::status(10);
        assert!(balanced(&status));
        status.domains = vec![domain("math", 20), domain("code", 20)];
        assert!(balanced(&status));
        status.domains[1].ledger.in_flight -= 1;
        status.domains[1].ledger.admitted -= 1;
        assert!(status.domains[1].ledger.balanced() && !balanced(&status));
    }
}
