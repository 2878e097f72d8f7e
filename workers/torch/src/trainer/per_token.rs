//! A batch's rollouts on their way to the loss. Each stage of a row is a type of its own, so that
//! nothing reads what is not computed yet: [`Sampled`], [`Looked`], [`ScoredTokens`].

use std::borrow::Cow;

use millrace_schemas::train_shard::Sequence;

/// One rollout. T tokens, R of them sampled. Of a row that another member computes, tokens and
/// log-probabilities may be elsewhere; everything else is known.
#[derive(Debug, Clone)]
pub(super) struct Row<V> {
    /// T.
    pub(super) length: usize,
    /// `[T]`, or empty where they are elsewhere.
    pub(super) tokens: Vec<u32>,
    /// What follows what among them: one sequence, and another for each fork.
    pub(super) sequences: Vec<Sequence>,
    /// Position of the logits of each sampled token: the one before it. `[R]`
    pub(super) logit_positions: Vec<usize>,
    /// Sampled tokens of each turn; they add up to R.
    pub(super) turns: Vec<usize>,
    /// What is known of the sampled tokens.
    pub(super) values: V,
}

impl<V> Row<V> {
    /// R.
    pub(super) const fn sampled(&self) -> usize {
        self.logit_positions.len()
    }

    /// Whether tokens and log-probabilities are here.
    pub(super) const fn is_here(&self) -> bool {
        self.tokens.len() == self.length
    }

    /// The tokens of a sequence that go into a forward: the last predicts nothing that was sampled.
    pub(super) fn inputs(&self, sequence: &Sequence) -> Cow<'_, [u32]> {
        match sequence.tokens(&self.tokens) {
            Cow::Borrowed(tokens) => tokens[..tokens.len() - 1].into(),
            Cow::Owned(mut tokens) => {
                tokens.pop();
                tokens.into()
            }
        }
    }

    /// The next stage of it.
    pub(super) fn map<W>(self, next: impl FnOnce(V) -> W) -> Row<W> {
        let Self { length, tokens, sequences, logit_positions, turns, values } = self;
        Row { length, tokens, sequences, logit_positions, turns, values: next(values) }
    }
}

/// From the batch. `[R]` each.
#[derive(Debug, Clone)]
pub(super) struct Sampled {
    /// Log-probabilities under the behaviour policy; empty where they are elsewhere.
    pub(super) behaviour: Vec<f32>,
    /// 1 where the version trained on sampled the token, else 0.
    pub(super) on_policy: Vec<f32>,
}

/// After the forwards that precede the first update. `[R]` each.
#[derive(Debug, Clone)]
pub(super) struct Looked {
    pub(super) sampled: Sampled,
    /// Log-probabilities under the policy of the ratio's denominator; empty where they are elsewhere
    /// and no advantage depends on them.
    pub(super) old: Vec<f32>,
    /// Log-probabilities under the reference model, where there is one.
    pub(super) reference: Option<Vec<f32>>,
    /// The critic's values, where there is one.
    pub(super) values: Option<Vec<f32>>,
}

/// After scoring: what an update trains on. A row that is elsewhere is counted, and goes into no
/// forward.
#[derive(Debug, Clone)]
pub(super) struct ScoredTokens {
    pub(super) tokens: PerToken<Vec<f32>>,
    /// The rollout was cut off, and the run masks such rollouts.
    pub(super) masked: bool,
}

impl Row<ScoredTokens> {
    /// Sampled tokens in the loss's denominator.
    pub(super) const fn counted(&self) -> usize {
        if self.values.masked { 0 } else { self.sampled() }
    }
}

/// What the loss reads, a value for each sampled token: `V` is `Vec<f32>` `[R]` for a rollout on the
/// host, and `Tensor` `[M]` for a forward on the device.
#[derive(Debug, Clone)]
pub(super) struct PerToken<V> {
    /// Log-probability under the behaviour policy.
    pub(super) behaviour: V,
    /// Log-probability under the policy of the ratio's denominator.
    pub(super) old: V,
    /// Log-probability under the reference model; `None` without one.
    pub(super) reference: Option<V>,
    pub(super) advantage: V,
    /// `None` without a critic.
    pub(super) aim: Option<Aim<V>>,
    /// Factor of the policy's loss that corrects for the behaviour policy; `None` without a
    /// correction.
    pub(super) weight: Option<V>,
    /// 1 for a token that counts, else 0.
    pub(super) mask: V,
    /// 1 where the rollout reached the goal, else 0; `None` without imitation.
    pub(super) reached: Option<V>,
    /// 1 where the version trained on sampled the token, else 0.
    pub(super) on_policy: V,
}

/// Targets of the critic.
#[derive(Debug, Clone)]
pub(super) struct Aim<V> {
    /// Its values before the step's first update.
    pub(super) values: V,
    /// The returns that it should predict.
    pub(super) returns: V,
}

impl<V> PerToken<V> {
    /// Puts rollouts or chunks one after another: `join` gets the values of one field, of each in
    /// order. All must come from one algorithm, which decides on the fields that may be absent.
    pub(super) fn gather<W>(each: &[&Self], join: impl Fn(Vec<&V>) -> W) -> PerToken<W> {
        let every = |of: fn(&Self) -> &V| join(each.iter().map(|one| of(one)).collect());
        let any = |of: fn(&Self) -> Option<&V>| {
            let present: Vec<&V> = each.iter().filter_map(|one| of(one)).collect();
            (!present.is_empty()).then(|| join(present))
        };
        let values = any(|one| Some(&one.aim.as_ref()?.values));
        let returns = any(|one| Some(&one.aim.as_ref()?.returns));
        PerToken {
            behaviour: every(|one| &one.behaviour),
            old: every(|one| &one.old),
            reference: any(|one| one.reference.as_ref()),
            advantage: every(|one| &one.advantage),
            aim: values.zip(returns).map(|(values, returns)| Aim { values, returns }),
            weight: any(|one| one.weight.as_ref()),
            mask: every(|one| &one.mask),
            reached: any(|one| one.reached.as_ref()),
            on_policy: every(|one| &one.on_policy),
        }
    }

    /// The same values in another form, or a part of them.
    pub(super) fn map<W>(&self, of: impl Fn(&V) -> W) -> PerToken<W> {
        Self::gather(&[self], |one| of(one[0]))
    }
}
