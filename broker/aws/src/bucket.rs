//! A bucket's settings, on AWS or any S3 server: reads them, and sets what is missing. Nothing here removes or
//! weakens a setting. Objects are read and written by `millrace-objects`.

use aws_sdk_s3::Client;
use aws_sdk_s3::config::{Credentials, Region, RequestChecksumCalculation};
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::types::{
    BucketLocationConstraint, BucketVersioningStatus, CreateBucketConfiguration,
    PublicAccessBlockConfiguration, ServerSideEncryption, ServerSideEncryptionByDefault,
    ServerSideEncryptionConfiguration, ServerSideEncryptionRule, VersioningConfiguration,
};
use millrace_objects::BucketAccess;

use crate::client::{AwsError, settings};

pub use lifecycle::{LifecycleRule, MissingRules};

mod lifecycle;

/// The region whose buckets are created without naming it.
const FIRST_REGION: &str = "us-east-1";
/// Codes by which servers say that they do not know a request.
const UNKNOWN_REQUEST: [&str; 4] = ["NotImplemented", "XNotImplemented", "MethodNotAllowed", "NotSupported"];
/// Statuses that say the same.
const UNKNOWN_STATUS: [u16; 2] = [405, 501];

/// A client of one bucket's settings.
#[derive(Debug, Clone)]
pub struct Bucket {
    client: Client,
    name: String,
    region: String,
}

/// A setting, as far as the server tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Setting<T> {
    /// The bucket has this.
    Known(T),
    /// The server does not implement it.
    Lacking,
    /// The server does not tell these credentials, for this reason.
    Hidden(String),
}

/// Whether a bucket exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// It does; its region, if the server tells it.
    Here(Option<String>),
    /// It does, in another region.
    Elsewhere(String),
    /// There is none of this name.
    Missing,
    /// The server does not tell these credentials.
    Forbidden,
}

/// Whether overwritten and removed objects can be fetched back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Versioning {
    /// They can.
    Enabled,
    /// They could; somebody switched it off.
    Suspended,
    /// They never could.
    Unset,
}

/// Which of AWS's four protections against publication a bucket has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PublicBlock {
    /// New public access control lists are refused.
    pub block_acls: bool,
    /// Public access control lists have no effect.
    pub ignore_acls: bool,
    /// New public policies are refused.
    pub block_policy: bool,
    /// A public policy serves this account only.
    pub restrict: bool,
}

impl PublicBlock {
    /// All four.
    pub const ALL: Self = Self { block_acls: true, ignore_acls: true, block_policy: true, restrict: true };
}

impl Bucket {
    /// A client with this access. It asks nothing yet.
    pub async fn connect(access: &BucketAccess) -> Self {
        let keys = Credentials::new(
            access.key_id.clone(),
            access.secret.clone(),
            access.token.clone(),
            None,
            "the object store's",
        );
        let mut config = aws_sdk_s3::config::Builder::from(&settings().await)
            .region(Region::new(access.region.clone()))
            .credentials_provider(keys)
            // Other servers than AWS's know no others.
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .force_path_style(!access.virtual_hosted);
        if let Some(endpoint) = &access.endpoint {
            // The object store's client wants the bucket in a virtual host's name; this one adds it.
            let with_bucket = format!("://{}.", access.at.bucket);
            let endpoint = if access.virtual_hosted {
                endpoint.replacen(&with_bucket, "://", 1)
            } else {
                endpoint.clone()
            };
            config = config.endpoint_url(endpoint);
        }
        let client = Client::from_conf(config.build());
        Self { client, name: access.at.bucket.clone(), region: access.region.clone() }
    }

    /// Whether the bucket exists, and where.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn presence(&self) -> Result<Presence, AwsError> {
        let error = match self.client.head_bucket().bucket(&self.name).send().await {
            Ok(found) => {
                let region = found.bucket_region().map(str::to_owned);
                return Ok(match region {
                    Some(region) if region != self.region => Presence::Elsewhere(region),
                    region => Presence::Here(region),
                });
            }
            Err(error) => error,
        };
        let response = error.raw_response();
        let region = response.and_then(|response| response.headers().get("x-amz-bucket-region"));
        match (response.map(|response| response.status().as_u16()), region) {
            (Some(301 | 400), Some(region)) => Ok(Presence::Elsewhere(region.to_owned())),
            (Some(404), _) => Ok(Presence::Missing),
            (Some(401 | 403), _) => Ok(Presence::Forbidden),
            _ => Err(AwsError::new(format!("look for the bucket {:?}", self.name), error)),
        }
    }

    /// Creates the bucket. One that this account has already is left as it is.
    ///
    /// # Errors
    /// The server cannot be reached or refuses: another account has the name, for example.
    pub async fn create(&self) -> Result<(), AwsError> {
        let region = (self.region != FIRST_REGION).then(|| {
            let region = BucketLocationConstraint::from(self.region.as_str());
            CreateBucketConfiguration::builder().location_constraint(region).build()
        });
        let request = self.client.create_bucket().bucket(&self.name).set_create_bucket_configuration(region);
        match request.send().await {
            Ok(_) => Ok(()),
            Err(error) if error.code() == Some("BucketAlreadyOwnedByYou") => Ok(()),
            Err(error) => Err(AwsError::new(format!("create the bucket {:?}", self.name), error)),
        }
    }

    /// Its versioning.
    pub async fn versioning(&self) -> Setting<Versioning> {
        let found = self.client.get_bucket_versioning().bucket(&self.name).send().await;
        let found = found.map(|found| match found.status() {
            Some(BucketVersioningStatus::Enabled) => Versioning::Enabled,
            Some(_) => Versioning::Suspended,
            None => Versioning::Unset,
        });
        setting(found, "", Versioning::Unset)
    }

    /// Keeps overwritten and removed objects from now on.
    ///
    /// # Errors
    /// The server cannot be reached or refuses.
    pub async fn enable_versioning(&self) -> Result<(), AwsError> {
        let status = VersioningConfiguration::builder().status(BucketVersioningStatus::Enabled).build();
        let request = self.client.put_bucket_versioning().bucket(&self.name).versioning_configuration(status);
        request.send().await.map(drop).map_err(|e| AwsError::new("enable versioning", e))
    }

    /// The algorithm by which it encrypts what is written; `None` for none.
    pub async fn encryption(&self) -> Setting<Option<String>> {
        let found = self.client.get_bucket_encryption().bucket(&self.name).send().await;
        let found = found.map(|found| {
            let mut rules =
                found.server_side_encryption_configuration().into_iter().flat_map(|all| all.rules());
            let applied = rules.find_map(|rule| rule.apply_server_side_encryption_by_default());
            applied.map(|applied| applied.sse_algorithm().as_str().to_owned())
        });
        setting(found, "ServerSideEncryptionConfigurationNotFoundError", None)
    }

    /// Encrypts what is written from now on, by a key of the store.
    ///
    /// # Errors
    /// The server cannot be reached or refuses.
    pub async fn encrypt(&self) -> Result<(), AwsError> {
        let failed = "encrypt the bucket";
        let by = ServerSideEncryptionByDefault::builder().sse_algorithm(ServerSideEncryption::Aes256).build();
        let by = by.map_err(|e| AwsError::new(failed, e))?;
        let rule = ServerSideEncryptionRule::builder().apply_server_side_encryption_by_default(by).build();
        let rules = ServerSideEncryptionConfiguration::builder().rules(rule).build();
        let rules = rules.map_err(|e| AwsError::new(failed, e))?;
        let request = self.client.put_bucket_encryption().bucket(&self.name);
        let set = request.server_side_encryption_configuration(rules).send().await;
        set.map(drop).map_err(|e| AwsError::new(failed, e))
    }

    /// Its protections against publication.
    pub async fn public_block(&self) -> Setting<PublicBlock> {
        let found = self.client.get_public_access_block().bucket(&self.name).send().await;
        let found = found.map(|found| {
            let block = found.public_access_block_configuration();
            let is_set = |read: fn(&PublicAccessBlockConfiguration) -> Option<bool>| {
                block.and_then(read).unwrap_or(false)
            };
            PublicBlock {
                block_acls: is_set(PublicAccessBlockConfiguration::block_public_acls),
                ignore_acls: is_set(PublicAccessBlockConfiguration::ignore_public_acls),
                block_policy: is_set(PublicAccessBlockConfiguration::block_public_policy),
                restrict: is_set(PublicAccessBlockConfiguration::restrict_public_buckets),
            }
        });
        setting(found, "NoSuchPublicAccessBlockConfiguration", PublicBlock::default())
    }

    /// Sets all four protections.
    ///
    /// # Errors
    /// The server cannot be reached or refuses.
    pub async fn block_public(&self) -> Result<(), AwsError> {
        let all = PublicAccessBlockConfiguration::builder()
            .block_public_acls(true)
            .ignore_public_acls(true)
            .block_public_policy(true)
            .restrict_public_buckets(true);
        let request = self.client.put_public_access_block().bucket(&self.name);
        let set = request.public_access_block_configuration(all.build()).send().await;
        set.map(drop).map_err(|e| AwsError::new("block public access", e))
    }

    /// Whether its policy lets everybody in.
    pub async fn has_public_policy(&self) -> Setting<bool> {
        let found = self.client.get_bucket_policy_status().bucket(&self.name).send().await;
        let found = found.map(|found| found.policy_status().and_then(|status| status.is_public()));
        setting(found.map(|public| public.unwrap_or(false)), "NoSuchBucketPolicy", false)
    }
}

/// What a server answered; `absent` where it says by `code` that there is no such setting.
fn setting<T, E: ProvideErrorMetadata>(answer: Result<T, SdkError<E>>, code: &str, absent: T) -> Setting<T> {
    let error = match answer {
        Ok(value) => return Setting::Known(value),
        Err(error) => error,
    };
    let status = error.raw_response().map(|response| response.status().as_u16());
    match error.code() {
        Some(found) if found == code => Setting::Known(absent),
        Some(found) if UNKNOWN_REQUEST.contains(&found) => Setting::Lacking,
        _ if status.is_some_and(|status| UNKNOWN_STATUS.contains(&status)) => Setting::Lacking,
        Some(found) => Setting::Hidden(found.to_owned()),
        None => Setting::Hidden(error.to_string()),
    }
}
