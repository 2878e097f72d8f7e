//! What an EC2 instance can learn about itself, by IMDSv2.

use aws_config::imds::client::error::ImdsError;
use aws_config::imds::{Client, client};
use aws_config::provider_config::ProviderConfig;
use aws_smithy_http_client::Builder;
use aws_smithy_types::date_time::{DateTime, Format};

use crate::client::{AwsError, REQUEST};

/// The target of an instance that its group ends.
const TERMINATED: &str = "Terminated";

/// A client of the instance metadata service.
#[derive(Debug, Clone)]
pub struct Metadata {
    client: Client,
}

/// What will happen to this instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notices {
    /// Its spot capacity is taken back then, in milliseconds since 1970.
    pub spot_ends_unix_ms: Option<u64>,
    /// Its spot capacity is likely to be taken back soon.
    pub rebalance: bool,
    /// Its scaling group ends it: it waits in the group's hook, if there is one.
    pub leaves_group: bool,
}

/// The answer of the service to what an instance does not have.
const NOT_FOUND: u16 = 404;

impl Default for Metadata {
    fn default() -> Self {
        Self::new()
    }
}

impl Metadata {
    /// A client of the service at `AWS_EC2_METADATA_SERVICE_ENDPOINT`, by default
    /// `http://169.254.169.254`. It asks nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self { client: builder().build() }
    }

    /// A client of the service at this address.
    #[cfg(test)]
    fn at(endpoint: &str) -> Self {
        Self { client: builder().endpoint(endpoint).expect("the address is one").build() }
    }

    /// The id of this instance.
    ///
    /// # Errors
    /// The service cannot be reached: this is no EC2 instance, or its metadata is switched off.
    pub async fn instance(&self) -> Result<String, AwsError> {
        const PATH: &str = "instance-id";
        let id = self.get(PATH).await?;
        id.ok_or_else(|| AwsError { action: action(PATH), reason: "this instance has none".to_owned() })
    }

    /// The scaling group that this instance belongs to, by its tag; `None` where it has none, or
    /// where the metadata does not include tags.
    ///
    /// # Errors
    /// The service cannot be reached.
    pub async fn group(&self) -> Result<Option<String>, AwsError> {
        self.get("tags/instance/aws:autoscaling:groupName").await
    }

    /// What will happen to this instance, as far as is known.
    ///
    /// # Errors
    /// The service cannot be reached, or its answer cannot be read.
    pub async fn notices(&self) -> Result<Notices, AwsError> {
        const SPOT: &str = "spot/termination-time";
        let spot = self.get(SPOT).await?.map(|time| {
            let time = DateTime::from_str(time.trim(), Format::DateTime);
            let time = time.map_err(|e| AwsError::new(action(SPOT), e))?;
            Ok(u64::try_from(time.to_millis().unwrap_or_default()).unwrap_or_default())
        });
        let rebalance = self.get("events/recommendations/rebalance").await?;
        let target = self.get("autoscaling/target-lifecycle-state").await?;
        Ok(Notices {
            spot_ends_unix_ms: spot.transpose()?,
            rebalance: rebalance.is_some(),
            leaves_group: target.is_some_and(|target| target.trim() == TERMINATED),
        })
    }

    /// What the service has at `path` below `/latest/meta-data/`; `None` for nothing.
    async fn get(&self, path: &str) -> Result<Option<String>, AwsError> {
        match self.client.get(format!("/latest/meta-data/{path}")).await {
            Ok(content) => Ok(Some(content.into())),
            Err(ImdsError::ErrorResponse(answer)) if answer.response().status().as_u16() == NOT_FOUND => {
                Ok(None)
            }
            Err(error) => Err(AwsError::new(action(path), error)),
        }
    }
}

fn builder() -> client::Builder {
    let settings = ProviderConfig::default().with_http_client(Builder::new().build_http());
    Client::builder().configure(&settings).operation_timeout(REQUEST)
}

fn action(path: &str) -> String {
    format!("read {path:?} of the instance metadata")
}

#[cfg(test)]
mod tests;
