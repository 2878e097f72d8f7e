//! Domains: parts of a run's prompts with an environment, rewards and limits of their own. A run
//! without any has one, from the top level of its run file.

use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{RewardSpec, RunSpec};
use crate::env_step::EnvironmentSpec;
use crate::ids::DomainName;

/// Parts that a share of 1 has: shares are counted in millionths, so that a mix is exact.
const PARTS: f64 = 1e6;
/// Allowed shares.
const SHARES: RangeInclusive<f64> = 0.0..=1e6;

/// Prompts of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DomainSpec {
    /// Its name, in reports: a-z, 0-9, '-' and '_'.
    pub name: DomainName,
    /// How much of each batch it is, beside the other domains' shares: 0.4, 0.3 and 0.3 mean what
    /// 4, 3 and 3 do.
    pub share: f64,
    /// Its environment.
    pub environment: EnvironmentSpec,
    /// The rewards of its rollouts. Default: the run's `rewards`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = null))]
    pub rewards: Option<Vec<RewardSpec>>,
    /// Tokens sampled in one of its turns at most. Default: the run's `rollout.max_new_tokens`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = null))]
    pub max_new_tokens: Option<u32>,
}

/// A domain with what it takes from the run filled in.
#[derive(Debug, Clone, Copy)]
pub struct Domain<'a> {
    /// Its number, from 0.
    pub number: u32,
    /// Its name; `None` for the one domain of a run that names none.
    pub name: Option<&'a DomainName>,
    /// Its environment.
    pub environment: &'a EnvironmentSpec,
    /// The rewards of its rollouts.
    pub rewards: &'a [RewardSpec],
    /// Tokens sampled in one of its turns at most.
    pub max_new_tokens: u32,
}

impl Domain<'_> {
    /// The weights of its rewards, in order.
    #[must_use]
    pub fn reward_weights(&self) -> Vec<f64> {
        self.rewards.iter().map(|reward| reward.weight).collect()
    }

    /// Tokens of its longest rollout.
    #[must_use]
    pub fn longest_rollout(&self) -> u64 {
        self.environment.longest_rollout(self.max_new_tokens)
    }
}

impl RunSpec {
    /// Its domains, by number: one, but for a run file that names none and no environment either,
    /// which is refused.
    pub fn parts(&self) -> impl Iterator<Item = Domain<'_>> {
        let whole = self.environment.iter().filter(|_| self.domains.is_empty()).map(|environment| Domain {
            number: 0,
            name: None,
            environment,
            rewards: &self.rewards,
            max_new_tokens: self.rollout.max_new_tokens,
        });
        whole.chain(self.domains.iter().zip(0..).map(|(domain, number)| Domain {
            number,
            name: Some(&domain.name),
            environment: &domain.environment,
            rewards: domain.rewards.as_deref().unwrap_or(&self.rewards),
            max_new_tokens: domain.max_new_tokens.unwrap_or(self.rollout.max_new_tokens),
        }))
    }

    /// The domain of this number.
    ///
    /// # Panics
    /// A run that was not refused has no domain of this number.
    #[must_use]
    pub fn part(&self, number: u32) -> Domain<'_> {
        self.parts().nth(number as usize).expect("groups are of domains that the run file has")
    }

    /// The domains' environments, to set the content of their datasets.
    pub fn environments_mut(&mut self) -> impl Iterator<Item = &mut EnvironmentSpec> {
        let own = self.domains.iter_mut().map(|domain| &mut domain.environment);
        self.environment.iter_mut().chain(own)
    }

    /// The domains' shares in whole numbers; `[1]` for a run with one domain.
    #[must_use]
    pub fn shares(&self) -> Vec<u64> {
        if self.domains.is_empty() {
            return vec![1];
        }
        self.domains.iter().map(|domain| parts_of(domain.share)).collect()
    }

    /// The path in the run file of what domain `number` has: `environment`, or
    /// `domains[2].environment`.
    #[must_use]
    pub fn path_of(&self, number: usize, what: &str) -> String {
        match self.domains.get(number) {
            None => what.to_owned(),
            Some(domain) if what == "rewards" && domain.rewards.is_none() => what.to_owned(),
            Some(_) => format!("domains[{number}].{what}"),
        }
    }
}

/// A share in whole parts; 0 if it is not a valid share.
pub(super) fn parts_of(share: f64) -> u64 {
    if SHARES.contains(&share) { (share * PARTS).round() as u64 } else { 0 }
}
