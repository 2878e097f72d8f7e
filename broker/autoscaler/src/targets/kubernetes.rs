//! The scale subresource of a workload, in the cluster that this process runs in. A client of
//! Kubernetes would bring its whole API; this is one PATCH.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Certificate, Client};
use serde_json::json;

use super::{Order, Target, TargetError};

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
}

impl Kubernetes {
    /// # Errors
    /// This process is not in a pod with a service account.
    pub(super) fn in_cluster(namespace: &str, resource: &str, name: &str) -> Result<Self, TargetError> {
        let host = std::env::var("KUBERNETES_SERVICE_HOST").map_err(|_| {
            TargetError(
                "target kubernetes: KUBERNETES_SERVICE_HOST is not set; run the coordinator in the cluster"
                    .into(),
            )
        })?;
        let port = std::env::var("KUBERNETES_SERVICE_PORT").unwrap_or_else(|_| "443".into());
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        Self::at(&format!("https://{host}:{port}"), Path::new(ACCOUNT), namespace, resource, name)
    }

    /// At this address, with the service account in this folder.
    ///
    /// # Errors
    /// The account's files cannot be read.
    pub(super) fn at(
        server: &str,
        account: &Path,
        namespace: &str,
        resource: &str,
        name: &str,
    ) -> Result<Self, TargetError> {
        let ca = account.join("ca.crt");
        let unreadable =
            |reason: String| TargetError(format!("target kubernetes: {}: {reason}", ca.display()));
        let pem = std::fs::read(&ca).map_err(|e| unreadable(e.to_string()))?;
        let authority = Certificate::from_pem(&pem).map_err(|e| unreadable(e.to_string()))?;
        let client = Client::builder().tls_certs_only([authority]).timeout(REQUEST).build();
        let client = client.map_err(|e| unreadable(e.to_string()))?;
        let url = format!("{server}/apis/apps/v1/namespaces/{namespace}/{resource}/{name}/scale");
        Ok(Self { client, url, token: account.join("token") })
    }
}

#[async_trait]
impl Target for Kubernetes {
    /// The pods that go are the cluster's choice; each drains at its SIGTERM.
    async fn follow(&self, desired: u32, _order: &Order) -> Result<(), TargetError> {
        let failed = |reason: String| TargetError(format!("failed to scale {}: {reason}", self.url));
        // The token is replaced within the hour.
        let token = tokio::fs::read_to_string(&self.token).await.map_err(|e| failed(e.to_string()))?;
        let request = self.client.patch(&self.url).bearer_auth(token.trim());
        let request = request.header(CONTENT_TYPE, "application/merge-patch+json");
        let body = json!({"spec": {"replicas": desired}}).to_string();
        let answer = request.body(body).send().await.map_err(|e| failed(e.to_string()))?;
        if answer.status().is_success() {
            return Ok(());
        }
        let status = answer.status();
        let text: String = answer.text().await.unwrap_or_default().chars().take(SHOWN).collect();
        Err(failed(format!("{status}: {text}")))
    }
}
