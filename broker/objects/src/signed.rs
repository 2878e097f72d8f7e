//! For tests: requests of S3 that the store's client does not make.

use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer};

/// A URL that lists the uploads in `bucket` that are neither completed nor aborted, for a minute.
///
/// # Panics
/// A setting is unknown.
pub async fn unfinished_uploads<'a>(
    bucket: &str,
    settings: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> String {
    let mut builder = AmazonS3Builder::new().with_bucket_name(bucket);
    for (name, value) in settings {
        builder = builder.with_config(name.parse().expect("a setting"), value);
    }
    let query = SignedUrlOptions::default().with_query([("uploads", "")]);
    let store = builder.build().expect("the settings are known");
    let get = "GET".parse().expect("a method");
    let url = store.signed_url_opts(get, &Path::default(), Duration::from_secs(60), &query).await;
    url.expect("signed").into()
}
