//! The policy key of each run: what workers watch.

use millrace_schemas::RunId;
use millrace_schemas::policy::Policy;
use millrace_schemas::subjects::POLICY_BUCKET;

use super::watched::{Watched, read};
use super::{Broker, BrokerError};
use crate::port::{Expect, Written};

/// Watches the policies of all runs.
pub type Policies = Watched<RunId, Policy>;

impl Broker {
    /// The policy of a run with its revision, as the leader of its stream knows it; `None` before version 0, and where
    /// the key holds no policy.
    ///
    /// # Errors
    /// The queue cannot be reached.
    pub async fn policy(&self, run: &RunId) -> Result<Option<(Policy, u64)>, BrokerError> {
        let standing = self.standing_policy(run).await?;
        Ok(standing.and_then(|(policy, revision)| Some((policy?, revision))))
    }

    /// A key that holds no policy has a revision all the same, at which its owner overwrites it.
    async fn standing_policy(&self, run: &RunId) -> Result<Option<(Option<Policy>, u64)>, BrokerError> {
        let Some(value) = self.queue.get_latest(POLICY_BUCKET, run.as_str()).await? else { return Ok(None) };
        let policy = match read::<RunId, Policy>(&value) {
            Ok((_, policy)) => Some(policy),
            Err(reason) => {
                tracing::error!(%run, reason, "the policy's key cannot be read; its next write mends it");
                None
            }
        };
        Ok(Some((policy, value.revision)))
    }

    /// Writes the policy of a run. What stands never goes back: a lower version or floor changes nothing, and
    /// an ended run stays ended, whoever writes and in whatever order.
    ///
    /// # Errors
    /// The queue cannot be reached.
    pub async fn set_policy(&self, run: &RunId, policy: &Policy) -> Result<(), BrokerError> {
        loop {
            let standing = self.standing_policy(run).await?;
            let (next, expect) = match &standing {
                Some((Some(standing), revision)) => (join(standing, policy), Expect::Revision(*revision)),
                Some((None, revision)) => (policy.clone(), Expect::Revision(*revision)),
                None => (policy.clone(), Expect::Absent),
            };
            if standing.is_some_and(|(standing, _)| standing.as_ref() == Some(&next)) {
                return Ok(());
            }
            let value = serde_json::to_vec(&next).expect("a policy holds only what JSON can express");
            match self.queue.set(POLICY_BUCKET, run.as_str(), value.into(), expect).await? {
                Written::At(_) => return Ok(()),
                // Another wrote meanwhile; look again.
                Written::Conflict => {}
            }
        }
    }

    /// Writes the policy of a run over the one that stands at `revision`, even where it says less: for a
    /// coordinator whose log lost what the key knows. Another write in between stands.
    ///
    /// # Errors
    /// The queue cannot be reached.
    pub async fn replace_policy(
        &self,
        run: &RunId,
        policy: &Policy,
        revision: u64,
    ) -> Result<Written, BrokerError> {
        let value = serde_json::to_vec(policy).expect("a policy holds only what JSON can express");
        let expect = Expect::Revision(revision);
        Ok(self.queue.set(POLICY_BUCKET, run.as_str(), value.into(), expect).await?)
    }

    /// Watches the policies of all runs.
    ///
    /// # Errors
    /// The queue cannot be reached.
    pub async fn watch_policies(&self) -> Result<Policies, BrokerError> {
        Ok(Watched::new(self.queue.watch(POLICY_BUCKET).await?))
    }
}

/// The later of two policies in every respect.
fn join(a: &Policy, b: &Policy) -> Policy {
    let newer = if b.version >= a.version { b } else { a };
    let attempt = if a.version == b.version { a.attempt.max(b.attempt) } else { newer.attempt };
    Policy {
        attempt,
        version: newer.version,
        manifest: newer.manifest,
        floor: a.floor.max(b.floor),
        partitions: newer.partitions,
        ended: a.ended || b.ended,
    }
}
