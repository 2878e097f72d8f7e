//! Checks of domains, besides those of each one's environment and rewards.

use std::collections::BTreeSet;

use super::Checks;
use crate::limits::{MAX_DOMAINS, MAX_NEW_TOKENS};
use crate::submit::RunSpec;
use crate::submit::domain::parts_of;

pub(super) fn check(spec: &RunSpec, checks: &mut Checks) {
    let (count, whole) = (spec.domains.len(), spec.environment.is_some());
    checks.require(
        whole != (count > 0),
        "environment",
        if whole { "one, and domains too" } else { "none" },
        "name one environment, or several [[domains]] that have one each",
    );
    checks.require(count <= MAX_DOMAINS, "domains", count, format!("name at most {MAX_DOMAINS}"));
    let mut names = BTreeSet::new();
    for (i, domain) in spec.domains.iter().enumerate() {
        let field = |what: &str| format!("domains[{i}].{what}");
        checks.require(
            names.insert(domain.name.as_str()),
            &field("name"),
            &domain.name,
            "another domain has this name; reports tell them by it",
        );
        let share = domain.share;
        checks.require(
            parts_of(share) > 0,
            &field("share"),
            share,
            "choose a number from 0.000001 to 1000000; a domain that shall have nothing is left out",
        );
        if let Some(tokens) = domain.max_new_tokens {
            checks.count(&field("max_new_tokens"), u64::from(tokens), 1, u64::from(MAX_NEW_TOKENS));
        }
    }
    if count > 1 {
        check_together(spec, checks);
    }
}

/// What several domains must have in common.
fn check_together(spec: &RunSpec, checks: &mut Checks) {
    let alpha = spec.rollout.alpha;
    checks.require(
        alpha.fract() == 0.0,
        "rollout.alpha",
        alpha,
        "with several domains each batch has the mix that is asked for, which leaves no choice of how much of it is the \
         oldest; choose a whole number",
    );
    let first = spec.domains[0].environment.actions();
    let other = spec.domains.iter().find(|domain| domain.environment.actions() != first);
    checks.require(
        other.is_none() || !spec.rollout.actions_only,
        "rollout.actions_only",
        true,
        "the domains have different actions, and a batch is trained on the same ones throughout; choose false",
    );
}
