//! How the store's bucket is reached, for what speaks of its settings: the same endpoint, region and credentials.

use std::fmt;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};

use super::location::{BucketLocation, without_password};
use super::{ObjectError, Objects};
use crate::tls::choose_ring;

/// The scheme of a bucket's location.
pub(super) const S3: &str = "s3://";
/// What the client takes for a region where none is set.
const DEFAULT_REGION: &str = "us-east-1";

/// A bucket, and how the environment reaches it.
pub struct BucketAccess {
    /// The bucket and its prefix.
    pub at: BucketLocation,
    /// The server's URL; `None` for AWS itself.
    pub endpoint: Option<String>,
    /// The region that requests are signed for.
    pub region: String,
    /// Whether the bucket is a part of the host's name instead of the path.
    pub virtual_hosted: bool,
    /// Id of the key.
    pub key_id: String,
    /// The key.
    pub secret: String,
    /// The session's token, of credentials that expire.
    pub token: Option<String>,
}

/// Without the key.
impl fmt::Debug for BucketAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, endpoint, region, virtual_hosted, key_id, .. } = self;
        f.debug_struct("BucketAccess")
            .field("at", at)
            .field("endpoint", endpoint)
            .field("region", region)
            .field("virtual_hosted", virtual_hosted)
            .field("key_id", key_id)
            .finish_non_exhaustive()
    }
}

impl Objects {
    /// How the environment reaches the bucket at `location`, or `None` if that is no bucket. Credentials of a
    /// role are fetched.
    ///
    /// # Errors
    /// The location is wrong, or there are no credentials.
    pub async fn bucket_access(location: &str) -> Result<Option<BucketAccess>, ObjectError> {
        let Some(rest) = location.strip_prefix(S3) else { return Ok(None) };
        let fail = |reason: String| ObjectError::Location { location: without_password(location), reason };
        let at = BucketLocation::parse(rest).map_err(fail)?;
        choose_ring();
        let builder = AmazonS3Builder::from_env().with_bucket_name(&at.bucket);
        let setting = |key| builder.get_config_value(&key);
        let endpoint = setting(AmazonS3ConfigKey::S3Endpoint).or(setting(AmazonS3ConfigKey::Endpoint));
        let region = setting(AmazonS3ConfigKey::Region).or(setting(AmazonS3ConfigKey::DefaultRegion));
        let virtual_hosted = setting(AmazonS3ConfigKey::VirtualHostedStyleRequest);
        let store = builder.build().map_err(|e| fail(e.to_string()))?;
        let credential = store.credentials().get_credential().await;
        let credential = credential.map_err(|e| ObjectError::from_store("get credentials for", "", &e))?;
        Ok(Some(BucketAccess {
            at,
            endpoint,
            region: region.unwrap_or_else(|| DEFAULT_REGION.into()),
            virtual_hosted: virtual_hosted.is_some_and(|value| value == "true"),
            key_id: credential.key_id.clone(),
            secret: credential.secret_key.clone(),
            token: credential.token.clone(),
        }))
    }
}
