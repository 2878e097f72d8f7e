//! Where objects are: a bucket with its prefix, as people write it.

use object_store::path::Path;

/// The longest name of a bucket; old ones of AWS and those of other servers may be so long.
const MAX_BUCKET: usize = 255;

/// A bucket and the prefix of the objects in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketLocation {
    /// The bucket's name.
    pub bucket: String,
    /// Without `/` at its ends; empty for the whole bucket.
    pub prefix: String,
}

impl BucketLocation {
    /// Reads `bucket/prefix`, without the scheme.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn parse(rest: &str) -> Result<Self, String> {
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err("it names no bucket; give s3://BUCKET/PREFIX".into());
        }
        if bucket.contains('@') || bucket.contains(':') {
            return Err("it has credentials or a port, which belong in the environment: AWS_ACCESS_KEY_ID, \
                        AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT; give s3://BUCKET/PREFIX"
                .into());
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        let starts_well = bucket.starts_with(|c: char| c.is_ascii_alphanumeric());
        if !starts_well || !bucket.chars().all(plain) || bucket.contains("..") || bucket.len() > MAX_BUCKET {
            return Err(format!(
                "bucket={bucket:?} is no name of a bucket; give letters, digits, - and . that begin with a letter or digit"
            ));
        }
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        if !prefix.is_empty() && prefix.split('/').any(str::is_empty) {
            return Err(format!(
                "prefix={prefix:?} has an empty name in it; give plain names with one / between"
            ));
        }
        let strange = |c: char| c.is_control() || matches!(c, '?' | '#');
        if prefix.contains(strange) {
            return Err(format!(
                "prefix={prefix:?} has a control character, ? or #; give plain names with / between"
            ));
        }
        Path::parse(prefix)
            .map_err(|e| format!("prefix={prefix:?}: {e}; give plain names with / between"))?;
        Ok(Self { bucket: bucket.into(), prefix: prefix.into() })
    }

    /// What the names of all objects begin with.
    #[must_use]
    pub fn below(&self) -> String {
        if self.prefix.is_empty() { String::new() } else { format!("{}/", self.prefix) }
    }
}

/// `location` without what stands before an `@`: an error must not print a password.
pub(super) fn without_password(location: &str) -> String {
    match (location.split_once("://"), location.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://…@{rest}"),
        _ => location.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_and_its_prefix_are_read() {
        for (given, bucket, prefix) in [
            ("models", "models", ""),
            ("models/", "models", ""),
            ("models/a/b", "models", "a/b"),
            ("models/a/b/", "models", "a/b"),
            ("My_old.Bucket/x", "My_old.Bucket", "x"),
        ] {
            let read = BucketLocation::parse(given).expect(given);
            assert_eq!((read.bucket.as_str(), read.prefix.as_str()), (bucket, prefix), "{given}");
        }
    }

    #[test]
    fn hostile_names_are_refused_with_the_remedy() {
        let long = "b".repeat(MAX_BUCKET + 1);
        for given in [
            "",
            "/a",
            "..",
            "../x",
            "a..b",
            ".hidden",
            "-x",
            "a b",
            "models?x=y",
            "models#x",
            "models%2e%2e",
            "モデル",
            "models\n",
            long.as_str(),
            "models/../x",
            "models/./x",
            "models//x",
            "models/a//",
            "models/a\nb",
            "models/a?versionId=1",
            "key:secret@models/x",
            "models:9000/x",
        ] {
            let reason = BucketLocation::parse(given).expect_err(given);
            assert!(reason.contains("give "), "{given:?}: {reason}");
            assert!(!reason.contains("secret@"), "{reason}");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        assert_eq!(without_password("s3://key:secret@models/x"), "s3://…@models/x");
        assert_eq!(without_password("s3://models/x"), "s3://models/x");
    }
}
