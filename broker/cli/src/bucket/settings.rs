//! The settings of a bucket, judged.

use millrace_aws::{Bucket, LifecycleRule, MissingRules, PublicBlock, Setting, Versioning};
use millrace_objects::BucketLocation;
use millrace_schemas::blob::paths;

use super::finding::Finding;

/// What a bucket has.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) versioning: Setting<Versioning>,
    pub(super) encryption: Setting<Option<String>>,
    pub(super) public_block: Setting<PublicBlock>,
    pub(super) public_policy: Setting<bool>,
    pub(super) lifecycle: Setting<Vec<LifecycleRule>>,
}

impl Settings {
    /// Asks for all at once.
    pub(super) async fn read(bucket: &Bucket) -> Self {
        let (versioning, encryption, public_block, public_policy, lifecycle) = tokio::join!(
            bucket.versioning(),
            bucket.encryption(),
            bucket.public_block(),
            bucket.has_public_policy(),
            bucket.lifecycle()
        );
        Self { versioning, encryption, public_block, public_policy, lifecycle }
    }

    /// The rules that `init` adds. Overwritten objects are forgotten only where nobody decided about them: a
    /// bucket that has versions keeps them.
    pub(super) fn missing_rules(&self, at: &BucketLocation) -> MissingRules {
        let Setting::Known(rules) = &self.lifecycle else { return MissingRules::default() };
        let below = at.below();
        let covered =
            |has: fn(&LifecycleRule) -> bool| rules.iter().any(|rule| has(rule) && rule.covers(&below));
        MissingRules {
            abort_uploads: !covered(|rule| rule.aborts_uploads),
            forget_overwritten: self.versioning == Setting::Known(Versioning::Unset)
                && !covered(|rule| rule.forgets_overwritten),
        }
    }

    /// What is to be said of them.
    pub(super) fn judge(&self, at: &BucketLocation, location: &str) -> Vec<Finding> {
        let init = format!("millrace bucket init {location}");
        let mut findings = vec![self.versions(&init), self.encrypted(&init), self.public(&init)];
        findings.extend(self.rules(at, &init));
        findings
    }

    fn versions(&self, init: &str) -> Finding {
        const WHAT: &str = "versioning";
        let why = "what somebody overwrites or removes by mistake cannot be fetched back";
        match &self.versioning {
            Setting::Known(Versioning::Enabled) => Finding::fine(WHAT, "enabled"),
            Setting::Known(Versioning::Suspended) => {
                let remedy = "aws s3api put-bucket-versioning --bucket BUCKET --versioning-configuration \
                              Status=Enabled, unless somebody suspended it on purpose";
                Finding::warning(WHAT, "suspended", why, remedy)
            }
            Setting::Known(Versioning::Unset) => Finding::warning(WHAT, "off", why, init),
            Setting::Lacking => Finding::lacking(WHAT),
            Setting::Hidden(reason) => hidden(WHAT, reason, "s3:GetBucketVersioning"),
        }
    }

    fn encrypted(&self, init: &str) -> Finding {
        const WHAT: &str = "encryption";
        match &self.encryption {
            Setting::Known(Some(algorithm)) => Finding::fine(WHAT, algorithm.clone()),
            Setting::Known(None) => {
                Finding::warning(WHAT, "off", "who gets hold of a disk reads weights and rollouts", init)
            }
            Setting::Lacking => Finding::lacking(WHAT),
            Setting::Hidden(reason) => hidden(WHAT, reason, "s3:GetEncryptionConfiguration"),
        }
    }

    fn public(&self, init: &str) -> Finding {
        const WHAT: &str = "public access";
        if self.public_policy == Setting::Known(true) {
            return Finding::error(
                WHAT,
                "the bucket's policy lets everybody in",
                "anybody reads weights and rollouts, and may overwrite them if the policy lets them write",
                "remove the statement with Principal \"*\" from the bucket's policy, or use another bucket; then init",
            );
        }
        match &self.public_block {
            Setting::Known(PublicBlock::ALL) => Finding::fine(WHAT, "blocked"),
            Setting::Known(_) => {
                Finding::warning(WHAT, "not blocked", "one wrong policy or object makes weights public", init)
            }
            Setting::Lacking => Finding::lacking(WHAT),
            Setting::Hidden(reason) => hidden(WHAT, reason, "s3:GetBucketPublicAccessBlock"),
        }
    }

    fn rules(&self, at: &BucketLocation, init: &str) -> Vec<Finding> {
        const WHAT: &str = "lifecycle";
        let rules = match &self.lifecycle {
            Setting::Known(rules) => rules,
            Setting::Lacking => return vec![Finding::lacking(WHAT)],
            Setting::Hidden(reason) => return vec![hidden(WHAT, reason, "s3:GetLifecycleConfiguration")],
        };
        let mut findings: Vec<Finding> = rules.iter().filter_map(|rule| takes_away(rule, at)).collect();
        let below = at.below();
        let covered =
            |has: fn(&LifecycleRule) -> bool| rules.iter().any(|rule| has(rule) && rule.covers(&below));
        if !covered(|rule| rule.aborts_uploads) {
            let why = "parts of uploads whose process was killed stay for ever, unseen, and are paid for";
            findings.push(Finding::warning(WHAT, "no rule aborts incomplete uploads", why, init));
        }
        let keeps_all =
            matches!(self.versioning, Setting::Known(Versioning::Enabled | Versioning::Suspended));
        if keeps_all && !covered(|rule| rule.forgets_overwritten) {
            let why = "every object that Millrace collects stays as an old version, and is paid for";
            let remedy = "add a rule with NoncurrentVersionExpiration, for example of 7 days";
            findings.push(Finding::warning(WHAT, "no rule removes old versions", why, remedy));
        }
        if findings.is_empty() {
            findings
                .push(Finding::fine(WHAT, "aborts incomplete uploads, expires nothing that is referred to"));
        }
        findings
    }
}

/// A rule that removes what Millrace refers to, or moves it out of reach.
fn takes_away(rule: &LifecycleRule, at: &BucketLocation) -> Option<Finding> {
    let does = match rule {
        LifecycleRule { expires: true, .. } => "removes objects",
        LifecycleRule { archives: true, .. } => "moves objects to an archive, where they cannot be read",
        _ => return None,
    };
    let below = at.below();
    let folder = paths::REFERRED.iter().find(|folder| rule.touches(&format!("{below}{folder}")))?;
    Some(Finding::error(
        "lifecycle",
        format!("rule {:?} {does} below {below}{folder}", rule.id),
        "manifests, weights and the log are lost by their age, while runs still refer to them",
        "remove the rule or limit it to another prefix; how long weights are kept is `retention` in the run file",
    ))
}

fn hidden(what: &'static str, reason: &str, right: &str) -> Finding {
    Finding::warning(
        what,
        format!("not known: {reason}"),
        "what cannot be read cannot be checked",
        format!("use an operator's credentials, or add the right {right}"),
    )
}

#[cfg(test)]
mod tests;
