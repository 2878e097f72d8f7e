//! The policy key of each run: what workers watch.

use millrace_schemas::RunId;
use millrace_schemas::policy::Policy;
use millrace_schemas::subjects::POLICY_BUCKET;
use serde::{Deserialize, Serialize};

use super::watched::{Watched, read};
use super::{Broker, BrokerError};
use crate::port::{Expect, Written};

/// Watches the policies of all runs.
pub type Policies = Watched<RunId, Policy>;

impl Broker {
    /// The policy of a run with its revision, from the leader of its stream; `None` before version
    /// 0, and where the key holds no policy.
    ///
    /// # Errors
    /// The queue cannot be reached.
    pub async fn policy(&self, run: &RunId) -> Result<Option<(Policy, u64)>, BrokerError> {
        let standing = self.standing_policy(run).await?;
        Ok(standing.and_then(|(led, revision)| Some((led?.policy, revision))))
    }

    /// The policy of a run from any replica, which may lag behind. For readers that make no
    /// decisions by it: an old policy costs only wasted work.
    ///
    /// # Errors
    /// The queue cannot be reached.
    pub async fn seen_policy(&self, run: &RunId) -> Result<Option<Policy>, BrokerError> {
        let value = self.queue.get(POLICY_BUCKET, run.as_str()).await?;
        Ok(value.and_then(|value| read::<RunId, Led>(&value).ok()).map(|(_, led)| led.policy))
    }

    /// A key that holds no policy has a revision all the same, at which its owner overwrites it.
    async fn standing_policy(&self, run: &RunId) -> Result<Option<(Option<Led>, u64)>, BrokerError> {
        let Some(value) = self.queue.get_latest(POLICY_BUCKET, run.as_str()).await? else { return Ok(None) };
        let policy = match read::<RunId, Led>(&value) {
            Ok((_, policy)) => Some(policy),
            Err(reason) => {
                tracing::error!(%run, reason, "the policy's key cannot be read; its next write mends it");
                None
            }
        };
        Ok(Some((policy, value.revision)))
    }

    /// Writes the policy of a run. The stored policy never goes back: a lower version or floor
    /// changes nothing. An ended run stays ended, whatever the writer and the order of the writes.
    ///
    /// # Errors
    /// The queue cannot be reached.
    pub async fn set_policy(&self, run: &RunId, policy: &Policy) -> Result<(), BrokerError> {
        self.set_policy_led(run, policy, 0).await.map(|_| ())
    }

    /// As [`Broker::set_policy`], by a leader of this epoch. A later leader's policy is kept, and
    /// this returns its epoch.
    ///
    /// # Errors
    /// The queue cannot be reached.
    pub async fn set_policy_led(
        &self,
        run: &RunId,
        policy: &Policy,
        epoch: u64,
    ) -> Result<Option<u64>, BrokerError> {
        loop {
            let standing = self.standing_policy(run).await?;
            let (next, expect) = match &standing {
                Some((Some(standing), revision)) => {
                    if standing.epoch > epoch && epoch > 0 {
                        tracing::warn!(%run, epoch, later = standing.epoch, "a later leader wrote the policy; it stands");
                        return Ok(Some(standing.epoch));
                    }
                    let policy = join(&standing.policy, policy);
                    // The key of an ended run never changes again, under any leader.
                    let same = policy == standing.policy && (policy.ended || standing.epoch >= epoch);
                    if same {
                        return Ok(None);
                    }
                    (Led { policy, epoch: standing.epoch.max(epoch) }, Expect::Revision(*revision))
                }
                Some((None, revision)) => {
                    (Led { policy: policy.clone(), epoch }, Expect::Revision(*revision))
                }
                None => (Led { policy: policy.clone(), epoch }, Expect::Absent),
            };
            let value = serde_json::to_vec(&next).expect("a policy holds only what JSON can express");
            match self.queue.set(POLICY_BUCKET, run.as_str(), value.into(), expect).await? {
                Written::At(_) => return Ok(None),
                // Another wrote meanwhile; look again.
                Written::Conflict => {}
            }
        }
    }

    /// Replaces the policy of a run that was stored at `revision`, even with one of a lower version
    /// or floor. For a coordinator whose log lost entries that the key reflects. A write in between
    /// is kept.
    ///
    /// # Errors
    /// The queue cannot be reached.
    pub async fn replace_policy(
        &self,
        run: &RunId,
        policy: &Policy,
        (revision, epoch): (u64, u64),
    ) -> Result<Written, BrokerError> {
        let value = serde_json::to_vec(&Led { policy: policy.clone(), epoch })
            .expect("a policy holds only what JSON can express");
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

/// A policy as its key stores it, with the leader that wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Led {
    #[serde(flatten)]
    policy: Policy,
    /// The leader's epoch; 0 where none is known.
    #[serde(default)]
    epoch: u64,
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
