//! An EC2 instance: spot notices, rebalance recommendations and the lifecycle of a scaling group.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millrace_aws::{AwsError, Metadata, Notices, ScalingGroups};
use millrace_schemas::notice::Machine;
use tokio::sync::{OnceCell, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::runtime::Departure;

/// Between two looks at the instance's notices.
const LOOK: Duration = Duration::from_secs(2);
/// Between two heartbeats of a lifecycle hook in which the instance waits.
const PROLONG: Duration = Duration::from_secs(15);

/// Watches the instance that this process is on.
pub(super) struct Ec2 {
    at: Arc<Place>,
    watching: JoinHandle<()>,
}

/// Where the instance is, and what it needs to leave.
struct Place {
    metadata: Metadata,
    hook: String,
    group: Option<String>,
    /// Set once it is needed: most instances never leave a group.
    groups: OnceCell<ScalingGroups>,
    /// The id of the instance.
    instance: OnceCell<String>,
}

impl Ec2 {
    pub(super) fn watch(
        hook: String,
        group: Option<String>,
        departure: Departure,
        of_machine: watch::Sender<Option<Machine>>,
    ) -> Self {
        let at = Arc::new(Place {
            metadata: Metadata::new(),
            hook,
            group,
            groups: OnceCell::new(),
            instance: OnceCell::new(),
        });
        let watching = tokio::spawn(follow(at.clone(), departure, of_machine));
        Self { at, watching }
    }

    /// Completes the hook of the instance's group, if the instance waits in it.
    pub(super) async fn let_go(self) {
        self.watching.abort();
        match self.at.complete().await {
            Ok(true) => tracing::info!(hook = self.at.hook, "the instance may go"),
            Ok(false) => {}
            // The hook's own timeout ends the wait.
            Err(error) => tracing::warn!(%error, "the instance waits until its hook times out"),
        }
    }
}

/// Consumes the instance's notices, produces the worker's departure and heartbeats of the hook. Waits
/// for the timer. When the service cannot be reached, it tells once, and looks again. Never ends.
async fn follow(at: Arc<Place>, departure: Departure, of_machine: watch::Sender<Option<Machine>>) {
    let (mut before, mut is_told, mut prolonged) = (Notices::default(), false, None::<Instant>);
    loop {
        match at.metadata.notices().await {
            Ok(notices) => {
                is_told = false;
                at.publish(&notices, &of_machine).await;
                request(&departure, &before, &notices);
                if notices.leaves_group && prolonged.is_none_or(|prolonged| prolonged.elapsed() >= PROLONG) {
                    prolonged = Some(Instant::now());
                    if let Err(error) = at.prolong().await {
                        tracing::debug!(%error, "the hook is not prolonged");
                    }
                }
                before = notices;
            }
            Err(error) if !is_told => {
                tracing::warn!(%error, "cannot see whether this instance will be taken back; looking again");
                is_told = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Requests the departure for what is new in `notices`: an end that is certain.
fn request(departure: &Departure, before: &Notices, notices: &Notices) {
    if let Some(ends) = notices.spot_ends_unix_ms
        && before.spot_ends_unix_ms != Some(ends)
    {
        departure.request("the spot instance is taken back", Some(until(ends)));
    }
    if notices.rebalance && !before.rebalance {
        // The group starts a replacement first, then ends this instance; without capacity it may do
        // neither for hours. A worker that left now would leave a machine that is paid and idle.
        tracing::info!("the spot instance may be taken back; working on until it is, or its group ends it");
    }
    if notices.leaves_group && !before.leaves_group {
        departure.request("the scaling group ends the instance", None);
    }
}

/// From now until `unix_ms`.
#[expect(clippy::disallowed_methods, reason = "the cloud tells the end by the machine's clock")]
fn until(unix_ms: u64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::from_millis(unix_ms).saturating_sub(now)
}

impl Place {
    /// Tells the instance's name, and its end once that is known.
    async fn publish(&self, notices: &Notices, of_machine: &watch::Sender<Option<Machine>>) {
        match self.instance().await {
            Ok(name) => {
                let machine = Machine { name: name.to_owned(), ends_unix_ms: notices.spot_ends_unix_ms };
                of_machine.send_replace(Some(machine));
            }
            Err(error) => tracing::debug!(%error, "the instance has no name yet"),
        }
    }

    async fn instance(&self) -> Result<&str, AwsError> {
        self.instance.get_or_try_init(|| self.metadata.instance()).await.map(String::as_str)
    }

    async fn groups(&self) -> &ScalingGroups {
        self.groups.get_or_init(ScalingGroups::connect).await
    }

    /// The scaling group of the instance; `None` where it has none.
    async fn group(&self) -> Result<Option<String>, AwsError> {
        match &self.group {
            Some(group) => Ok(Some(group.clone())),
            None => self.metadata.group().await,
        }
    }

    async fn prolong(&self) -> Result<(), AwsError> {
        let Some(group) = self.group().await? else { return Ok(()) };
        self.groups().await.prolong_hook(&group, &self.hook, self.instance().await?).await
    }

    /// Completes the hook. Returns whether the instance waited in one.
    async fn complete(&self) -> Result<bool, AwsError> {
        if !self.metadata.notices().await?.leaves_group {
            return Ok(false);
        }
        let Some(group) = self.group().await? else { return Ok(false) };
        self.groups().await.complete_hook(&group, &self.hook, self.instance().await?).await?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn departs(before: &Notices, notices: &Notices) -> bool {
        let departure = Departure::default();
        request(&departure, before, notices);
        departure.requested().is_cancelled()
    }

    #[tokio::test]
    async fn a_worker_stays_at_a_rebalance_recommendation_and_departs_at_what_is_certain() {
        let stays = Notices::default();
        let rebalance = Notices { rebalance: true, ..stays.clone() };
        assert!(!departs(&stays, &rebalance), "nobody ends the instance yet");
        let leaves_group = Notices { leaves_group: true, ..rebalance.clone() };
        assert!(departs(&rebalance, &leaves_group), "its replacement serves");
        let spot = Notices { spot_ends_unix_ms: Some(1), ..rebalance.clone() };
        assert!(departs(&rebalance, &spot));
        assert!(!departs(&spot, &spot), "a notice counts once");
    }
}
