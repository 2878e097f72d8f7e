//! The faults of a run, drawn by seed: the same seed, scenario and processes give the same plan.

use std::time::Duration;

use millrace_policy::random::Stream;

use super::role::{ALL, Role};
use super::scenario::{Kind, Scenario, Weighted};

/// One fault to be.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    /// After the one before has begun.
    pub after: Duration,
    /// What.
    pub kind: Kind,
    /// To whom; [`Role::Objects`] for a full disk.
    pub role: Role,
    /// To which of the role's processes: this, modulo how many there are.
    pub which: u64,
    /// For how long; for kills, until it is started again.
    pub lasts: Duration,
    /// How much later things arrive.
    pub delay: Duration,
}

/// What can be done here.
#[derive(Debug, Clone, Copy)]
pub struct Means {
    /// There is a disk that can be filled.
    pub disk: bool,
    /// There is a cluster, whose leader can be killed.
    pub cluster: bool,
}

/// Faults without end.
#[derive(Debug)]
pub struct Plan {
    scenario: Scenario,
    random: Stream,
    /// Roles in a shuffled order, dealt out one after the other so that none is left out for long.
    deck: Vec<Role>,
}

impl Plan {
    /// The plan of `seed`. Kinds for which there are no means are left out.
    #[must_use]
    pub fn new(mut scenario: Scenario, means: Means, seed: u64) -> Self {
        scenario.faults.retain(|fault| match fault.kind {
            Kind::DiskFull => means.disk,
            Kind::KillLeader => means.cluster,
            Kind::Kill
            | Kind::KillRole
            | Kind::Pause
            | Kind::PauseRole
            | Kind::Cut
            | Kind::Delay
            | Kind::Blackhole => true,
        });
        Self { scenario, random: Stream::new(seed), deck: Vec::new() }
    }

    /// The next fault.
    pub fn draw(&mut self) -> Fault {
        let after = self.within(self.scenario.every_s);
        let fault = self.kind();
        let role = match fault.kind {
            Kind::DiskFull => Role::Objects,
            Kind::KillLeader => Role::Server,
            Kind::Kill | Kind::KillRole | Kind::Pause | Kind::PauseRole => self.role(true),
            // The server is the other end of every connection that can be cut.
            Kind::Cut | Kind::Delay | Kind::Blackhole => self.role(false),
        };
        Fault {
            after,
            kind: fault.kind,
            role,
            which: self.random.below(1 << 32),
            lasts: self.within(fault.lasts_s.unwrap_or(self.scenario.restart_s)),
            delay: self.within(fault.delay_s.unwrap_or_default()),
        }
    }

    fn kind(&mut self) -> Weighted {
        let all: u64 = self.scenario.faults.iter().map(|fault| u64::from(fault.weight)).sum();
        let mut at = self.random.below(all);
        for fault in &self.scenario.faults {
            match at.checked_sub(u64::from(fault.weight)) {
                Some(rest) => at = rest,
                None => return fault.clone(),
            }
        }
        unreachable!("the draw is below the sum of the weights")
    }

    fn role(&mut self, server: bool) -> Role {
        loop {
            if self.deck.is_empty() {
                self.deck = ALL.to_vec();
                for i in (1..self.deck.len()).rev() {
                    let j = self.random.below(i as u64 + 1) as usize;
                    self.deck.swap(i, j);
                }
            }
            let fits = |role: &Role| server || *role != Role::Server;
            if let Some(at) = self.deck.iter().rposition(fits) {
                return self.deck.remove(at);
            }
            self.deck.clear();
        }
    }

    fn within(&mut self, [least, most]: [f64; 2]) -> Duration {
        Duration::from_secs_f64(least + (most - least) * self.random.unit())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const ALL_MEANS: Means = Means { disk: true, cluster: true };

    fn draw(seed: u64, means: Means) -> Vec<Fault> {
        let mut plan = Plan::new(Scenario::read(None).unwrap(), means, seed);
        (0..200).map(|_| plan.draw()).collect()
    }

    #[test]
    fn a_plan_follows_from_its_seed() {
        assert_eq!(draw(1, ALL_MEANS), draw(1, ALL_MEANS));
        assert_ne!(draw(1, ALL_MEANS), draw(2, ALL_MEANS));
    }

    #[test]
    fn ten_minutes_have_a_hundred_faults_of_all_kinds_and_roles() {
        let (mut kinds, mut roles, mut at) = (BTreeMap::new(), BTreeMap::new(), Duration::ZERO);
        let mut count = 0;
        for fault in draw(1, ALL_MEANS) {
            at += fault.after;
            if at > Duration::from_secs(600) {
                break;
            }
            count += 1;
            *kinds.entry(fault.kind).or_insert(0) += 1;
            *roles.entry(fault.role).or_insert(0) += 1;
        }
        assert!(count >= 100, "{count}");
        assert_eq!(kinds.len(), 9, "{kinds:?}");
        assert_eq!(roles.len(), ALL.len() + 1, "{roles:?}");
    }

    #[test]
    fn what_cannot_be_done_is_not_drawn() {
        let without = draw(1, Means { disk: false, cluster: false });
        assert!(without.iter().all(|fault| !matches!(fault.kind, Kind::DiskFull | Kind::KillLeader)));
    }
}
