//! What every client of AWS here shares: its settings and its error.

use std::time::Duration;

use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_types::error::display::DisplayErrorContext;

/// A request takes no longer than this, all of its retries included.
pub(crate) const REQUEST: Duration = Duration::from_secs(10);

/// Why AWS did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("failed to {action}: {reason}")]
pub struct AwsError {
    /// What was asked.
    pub action: String,
    /// What AWS, or the way to it, answered.
    pub reason: String,
}

impl AwsError {
    pub(crate) fn new(action: impl Into<String>, error: impl std::error::Error) -> Self {
        Self { action: action.into(), reason: DisplayErrorContext(error).to_string() }
    }
}

/// The settings of the SDK, with TLS by the cryptography that the other crates use.
pub(crate) async fn settings() -> SdkConfig {
    let http = Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
    let timeouts = TimeoutConfig::builder().operation_timeout(REQUEST).build();
    aws_config::defaults(BehaviorVersion::latest()).http_client(http).timeout_config(timeouts).load().await
}
