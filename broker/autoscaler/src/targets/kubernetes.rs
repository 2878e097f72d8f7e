//! The scale subresource of a workload, in the cluster that this process runs in. A client of
//! Kubernetes would bring its whole API; this is one PATCH.
//!
//! Kubernetes chooses which pods end, those first that are not ready. So the workers that should go
//! are asked to leave, which makes their pods not ready, and the number falls when a probe has seen
//! that.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use millrace_queue::Broker;
use millrace_schemas::WorkerId;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Certificate, Client};
use serde_json::json;
use tokio::time::Instant;

use super::drain::Drain;
use super::{Order, Target, TargetError, UNREADY};

/// Where a pod finds the authority and the token of its service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// A request takes no longer than this.
const REQUEST: Duration = Duration::from_secs(10);
/// Characters of a refusal that are shown.
const SHOWN: usize = 300;

pub(super) struct Kubernetes {
    client: Client,
    url: String,
    token: std::path::PathBuf,
    drain: Drain,
    unready: Duration,
    scaled: Mutex<Scaled>,
}

/// What was done so far.
#[derive(Default)]
struct Scaled {
    /// The number that was set last.
    replicas: Option<u32>,
    /// When each of the workers that the number still has was first asked to leave.
    asked: BTreeMap<WorkerId, Instant>,
}

impl Kubernetes {
    /// # Errors
    /// This process is not in a pod with a service account.
    pub(super) fn in_cluster(
        broker: Broker,
        namespace: &str,
        resource: &str,
        name: &str,
    ) -> Result<Self, TargetError> {
        let host = std::env::var("KUBERNETES_SERVICE_HOST").map_err(|_| {
            TargetError(
                "target kubernetes: KUBERNETES_SERVICE_HOST is not set; run the coordinator in the cluster"
                    .into(),
            )
        })?;
        let port = std::env::var("KUBERNETES_SERVICE_PORT").unwrap_or_else(|_| "443".into());
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let workload = format!("namespaces/{namespace}/{resource}/{name}");
        Self::at(broker, &format!("https://{host}:{port}"), Path::new(ACCOUNT), &workload, UNREADY)
    }

    /// At this address, with the service account in this folder.
    ///
    /// # Errors
    /// The account's files cannot be read.
    fn at(
        broker: Broker,
        server: &str,
        account: &Path,
        workload: &str,
        unready: Duration,
    ) -> Result<Self, TargetError> {
        let ca = account.join("ca.crt");
        let unreadable =
            |reason: String| TargetError(format!("target kubernetes: {}: {reason}", ca.display()));
        let pem = std::fs::read(&ca).map_err(|e| unreadable(e.to_string()))?;
        let authority = Certificate::from_pem(&pem).map_err(|e| unreadable(e.to_string()))?;
        let client = Client::builder().tls_certs_only([authority]).timeout(REQUEST).build();
        let client = client.map_err(|e| unreadable(e.to_string()))?;
        let url = format!("{server}/apis/apps/v1/{workload}/scale");
        let (token, drain, scaled) = (account.join("token"), Drain::new(broker), Mutex::default());
        Ok(Self { client, url, token, drain, unready, scaled })
    }

    /// Whether the number may be set now: it grows at once, goes to nothing at once, and falls to another
    /// one when the pods of `order`, and of the orders before that it still has, have had the time to become
    /// not ready. A worker that does not leave holds it up no longer.
    fn may_set(&self, desired: u32, order: &Order) -> bool {
        let mut scaled = self.scaled.lock().unwrap_or_else(PoisonError::into_inner);
        if scaled.replicas.is_some_and(|replicas| replicas <= desired) {
            scaled.asked.clear();
        } else {
            for worker in &order.leave {
                scaled.asked.entry(worker.clone()).or_insert_with(Instant::now);
            }
        }
        // Who serves again becomes not ready again.
        scaled.asked.retain(|worker, _| !order.recall.contains(worker));
        desired == 0 || scaled.asked.values().all(|asked| asked.elapsed() >= self.unready)
    }

    async fn set(&self, desired: u32) -> Result<(), TargetError> {
        let failed = |reason: String| TargetError(format!("failed to scale {}: {reason}", self.url));
        // The token is replaced within the hour.
        let token = tokio::fs::read_to_string(&self.token).await.map_err(|e| failed(e.to_string()))?;
        let request = self.client.patch(&self.url).bearer_auth(token.trim());
        let request = request.header(CONTENT_TYPE, "application/merge-patch+json");
        let body = json!({"spec": {"replicas": desired}}).to_string();
        let answer = request.body(body).send().await.map_err(|e| failed(e.to_string()))?;
        let status = answer.status();
        if !status.is_success() {
            let text: String = answer.text().await.unwrap_or_default().chars().take(SHOWN).collect();
            return Err(failed(format!("{status}: {text}")));
        }
        let done = Scaled { replicas: Some(desired), asked: BTreeMap::new() };
        *self.scaled.lock().unwrap_or_else(PoisonError::into_inner) = done;
        Ok(())
    }
}

#[async_trait]
impl Target for Kubernetes {
    async fn follow(&self, desired: u32, order: &Order) -> Result<(), TargetError> {
        self.drain.follow(desired, order).await?;
        match self.may_set(desired, order) {
            true => self.set(desired).await,
            false => Ok(()),
        }
    }

    fn forget(&self) {
        *self.scaled.lock().unwrap_or_else(PoisonError::into_inner) = Scaled::default();
    }
}

#[cfg(test)]
mod tests;
