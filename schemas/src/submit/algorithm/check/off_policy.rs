//! Terms that would do nothing, because the ratio that they bound is always 1.

use crate::submit::validate::Checks;
use crate::submit::{Algorithm, CorrectionWeight, OldPolicy, Rejection};

impl Algorithm {
    /// A loss with a ratio needs a proximal policy that is not the current one.
    pub(super) fn check_old(&self, checks: &mut Checks) {
        let sees = self.loss.sees_old();
        checks.require(
            !(sees && self.old == OldPolicy::Proximal && self.updates() == 1),
            "algorithm.old",
            "proximal",
            "with one update a step the ratio to the version trained on is always 1 and clipping does nothing; choose \"behaviour\", or more epochs or minibatches, or algorithm.loss = \"policy_gradient\"",
        );
        checks.require(
            !(sees && self.old == OldPolicy::Current),
            "algorithm.old",
            "current",
            "the ratio to the policy in training itself is always 1, so that what this loss does with it does nothing; choose \"behaviour\", or algorithm.loss = \"policy_gradient\"",
        );
    }

    /// A correction needs a proximal policy that is neither the current nor the behaviour policy.
    pub(super) fn check_correction(&self, checks: &mut Checks) {
        let c = &self.correction;
        self.check_bounds(checks);
        if c.is_off() {
            return;
        }
        let remedy = match self.old {
            OldPolicy::Proximal => return,
            OldPolicy::Behaviour => {
                "the old policy is the one that sampled, so that algorithm.correction would weigh everything by 1; choose \"proximal\", or leave out algorithm.correction"
            }
            OldPolicy::Current => {
                "algorithm.correction weighs by an old policy that stays while the step is made; choose \"proximal\", or leave out algorithm.correction"
            }
        };
        checks.require(false, "algorithm.old", self.old.name(), remedy);
    }

    fn check_bounds(&self, checks: &mut Checks) {
        let c = &self.correction;
        checks.number("algorithm.correction.cap", c.cap, 0.0, 1e6);
        checks.number("algorithm.correction.veto", c.veto, 0.0, 0.999);
        let weighs = c.weight != CorrectionWeight::None;
        checks.require(
            weighs || c.cap == 2.0,
            "algorithm.correction.cap",
            c.cap,
            "there is no weight to be cut to it; choose algorithm.correction.weight = \"token\", \"turn\" or \"sequence\", or leave it out",
        );
        let (low, high) = c.bounds();
        if c.reject == Rejection::None {
            checks.require(
                c.low.is_none() && c.high.is_none(),
                "algorithm.correction.reject",
                "none",
                "nothing is rejected, whatever its bounds; choose \"token\", \"sequence\", \"geometric\" or \"turn\", or leave out algorithm.correction.low and high",
            );
            return;
        }
        checks.number("algorithm.correction.low", low, 0.0, 1.0);
        checks.number("algorithm.correction.high", high, 1.0, 1e6);
        checks.require(
            low < high,
            "algorithm.correction.high",
            high,
            "everything would be rejected; choose more than algorithm.correction.low",
        );
    }
}
