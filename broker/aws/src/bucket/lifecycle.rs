//! The rules by which a bucket removes or moves objects on its own.

use aws_sdk_s3::types::{
    AbortIncompleteMultipartUpload, BucketLifecycleConfiguration, ExpirationStatus, LifecycleExpiration,
    LifecycleRule as Rule, LifecycleRuleFilter, NoncurrentVersionExpiration, TransitionStorageClass,
};
use millrace_objects::BucketLocation;

use super::{Bucket, Setting, setting};
use crate::client::AwsError;

/// What a bucket without rules answers.
const NO_RULES: &str = "NoSuchLifecycleConfiguration";
/// Days after which the parts of an upload that nobody completed are removed. No upload takes so long.
const ABORT_DAYS: i32 = 1;
/// Days for which an object that was overwritten or removed can be fetched back.
const KEEP_OVERWRITTEN_DAYS: i32 = 7;

/// A rule, as far as it matters to the object store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LifecycleRule {
    /// Its name.
    pub id: String,
    /// It applies to objects whose names begin so.
    pub prefix: String,
    /// It is in force.
    pub is_enabled: bool,
    /// It applies only to objects with certain tags. Millrace sets none.
    pub wants_tags: bool,
    /// It removes objects that are current.
    pub expires: bool,
    /// It moves current objects to where they cannot be read at once.
    pub archives: bool,
    /// It removes what was overwritten or removed before.
    pub forgets_overwritten: bool,
    /// It removes the parts of uploads that nobody completed.
    pub aborts_uploads: bool,
}

/// Rules that are to be added.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MissingRules {
    /// The one that removes the parts of uploads that nobody completed.
    pub abort_uploads: bool,
    /// The one that removes what was overwritten or removed a week ago.
    pub forget_overwritten: bool,
}

impl LifecycleRule {
    fn of(rule: &Rule) -> Self {
        let filter = rule.filter();
        let and = filter.and_then(LifecycleRuleFilter::and);
        #[expect(deprecated, reason = "rules of older days have their prefix there")]
        let prefix = rule.prefix();
        let prefix =
            prefix.or(filter.and_then(LifecycleRuleFilter::prefix)).or(and.and_then(|and| and.prefix()));
        let archive = [TransitionStorageClass::Glacier, TransitionStorageClass::DeepArchive];
        let has_archive = |class: &TransitionStorageClass| archive.contains(class);
        let expiration = rule.expiration();
        Self {
            id: rule.id().unwrap_or_default().to_owned(),
            prefix: prefix.unwrap_or_default().to_owned(),
            is_enabled: *rule.status() == ExpirationStatus::Enabled,
            wants_tags: filter.is_some_and(|filter| filter.tag().is_some())
                || and.is_some_and(|and| !and.tags().is_empty()),
            expires: expiration.is_some_and(|end| end.days().is_some() || end.date().is_some()),
            archives: rule.transitions().iter().any(|to| to.storage_class().is_some_and(has_archive)),
            forgets_overwritten: rule.noncurrent_version_expiration().is_some(),
            aborts_uploads: rule.abort_incomplete_multipart_upload().is_some(),
        }
    }

    /// Whether it applies to some object whose name begins with `prefix`.
    #[must_use]
    pub fn touches(&self, prefix: &str) -> bool {
        let overlap = self.prefix.starts_with(prefix) || prefix.starts_with(&self.prefix);
        self.is_enabled && !self.wants_tags && overlap
    }

    /// Whether it applies to every object whose name begins with `prefix`.
    #[must_use]
    pub fn covers(&self, prefix: &str) -> bool {
        self.is_enabled && !self.wants_tags && prefix.starts_with(&self.prefix)
    }
}

impl Bucket {
    /// Its rules.
    pub async fn lifecycle(&self) -> Setting<Vec<LifecycleRule>> {
        let found = self.client.get_bucket_lifecycle_configuration().bucket(&self.name).send().await;
        setting(
            found.map(|found| found.rules().iter().map(LifecycleRule::of).collect()),
            NO_RULES,
            Vec::new(),
        )
    }

    /// Adds the missing rules for the objects at `at`, and keeps all others. A rule that somebody adds in the
    /// same moment may get lost: S3 replaces all of them at once.
    ///
    /// # Errors
    /// The server cannot be reached or refuses.
    pub async fn add_rules(&self, at: &BucketLocation, missing: MissingRules) -> Result<(), AwsError> {
        let action = "add lifecycle rules";
        let found = self.client.get_bucket_lifecycle_configuration().bucket(&self.name).send().await;
        let (mut rules, least_size) = match found {
            Ok(found) => (found.rules().to_vec(), found.transition_default_minimum_object_size().cloned()),
            Err(e) => match setting(Err(e), NO_RULES, ()) {
                Setting::Known(()) => (Vec::new(), None),
                Setting::Lacking => {
                    let reason = "the server does not implement them".to_owned();
                    return Err(AwsError { action: action.to_owned(), reason });
                }
                Setting::Hidden(reason) => return Err(AwsError { action: action.to_owned(), reason }),
            },
        };
        rules.extend(missing.rules(at).map_err(|e| AwsError::new(action, e))?);
        let all = BucketLifecycleConfiguration::builder().set_rules(Some(rules)).build();
        let all = all.map_err(|e| AwsError::new(action, e))?;
        let request = self.client.put_bucket_lifecycle_configuration().bucket(&self.name);
        let request = request.lifecycle_configuration(all);
        let set = request.set_transition_default_minimum_object_size(least_size).send().await;
        set.map(drop).map_err(|e| AwsError::new(action, e))
    }
}

impl MissingRules {
    /// Whether none is.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    fn rules(self, at: &BucketLocation) -> Result<Vec<Rule>, aws_sdk_s3::error::BuildError> {
        let rule = |what: &str| {
            // Two object stores in one bucket have a rule each.
            let id = [at.prefix.as_str(), what].join(if at.prefix.is_empty() { "" } else { "-" });
            let filter = LifecycleRuleFilter::builder().prefix(at.below()).build();
            Rule::builder().id(format!("millrace-{id}")).status(ExpirationStatus::Enabled).filter(filter)
        };
        let mut rules = Vec::new();
        if self.abort_uploads {
            let abort = AbortIncompleteMultipartUpload::builder().days_after_initiation(ABORT_DAYS).build();
            rules.push(rule("abort-uploads").abort_incomplete_multipart_upload(abort).build()?);
        }
        if self.forget_overwritten {
            let forget =
                NoncurrentVersionExpiration::builder().noncurrent_days(KEEP_OVERWRITTEN_DAYS).build();
            let markers = LifecycleExpiration::builder().expired_object_delete_marker(true).build();
            let rule = rule("forget-overwritten").noncurrent_version_expiration(forget);
            rules.push(rule.expiration(markers).build()?);
        }
        Ok(rules)
    }
}
