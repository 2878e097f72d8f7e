use super::super::finding::Level;
use super::*;

fn at(prefix: &str) -> BucketLocation {
    BucketLocation { bucket: "models".into(), prefix: prefix.into() }
}

/// A bucket as `init` leaves it.
fn sound() -> Settings {
    let rule = |id: &str| LifecycleRule { id: id.into(), is_enabled: true, ..LifecycleRule::default() };
    Settings {
        versioning: Setting::Known(Versioning::Enabled),
        encryption: Setting::Known(Some("AES256".into())),
        public_block: Setting::Known(PublicBlock::ALL),
        public_policy: Setting::Known(false),
        lifecycle: Setting::Known(vec![
            LifecycleRule { aborts_uploads: true, ..rule("abort") },
            LifecycleRule { forgets_overwritten: true, ..rule("forget") },
        ]),
    }
}

fn levels(settings: &Settings, prefix: &str) -> Vec<(Level, String)> {
    let findings = settings.judge(&at(prefix), "s3://models/x");
    let bad = findings.into_iter().filter(|finding| finding.level != Level::Fine);
    bad.map(|finding| (finding.level, format!("{}: {}", finding.what, finding.found))).collect()
}

fn with_rule(rule: LifecycleRule) -> Settings {
    let mut settings = sound();
    if let Setting::Known(rules) = &mut settings.lifecycle {
        rules.push(LifecycleRule { id: "theirs".into(), is_enabled: true, ..rule });
    }
    settings
}

#[test]
fn a_sound_bucket_has_no_findings() {
    assert_eq!(levels(&sound(), "objects"), []);
    assert_eq!(sound().missing_rules(&at("objects")), MissingRules::default());
}

#[test]
fn a_rule_that_removes_what_is_referred_to_is_an_error() {
    for (prefix, is_error) in [
        ("", true),
        ("objects/", true),
        ("objects/runs/", true),
        ("obj", true),
        ("objects/runs/lake/weights/", true),
        ("objects/log/", true),
        ("objects/snapshots/0", true),
        ("objects/collect/", false),
        ("releases/", false),
        ("objects2/", false),
    ] {
        for rule in [
            LifecycleRule { expires: true, prefix: prefix.into(), ..LifecycleRule::default() },
            LifecycleRule { archives: true, prefix: prefix.into(), ..LifecycleRule::default() },
        ] {
            let found = levels(&with_rule(rule), "objects");
            let errors = found.iter().filter(|(level, _)| *level == Level::Error).count();
            assert_eq!(errors, usize::from(is_error), "{prefix:?}: {found:?}");
        }
    }
    let tagged = LifecycleRule { expires: true, wants_tags: true, ..LifecycleRule::default() };
    assert_eq!(levels(&with_rule(tagged), "objects"), [], "Millrace sets no tags");
}

#[test]
fn a_rule_that_is_switched_off_neither_harms_nor_helps() {
    let mut settings = with_rule(LifecycleRule { expires: true, ..LifecycleRule::default() });
    if let Setting::Known(rules) = &mut settings.lifecycle {
        rules.iter_mut().for_each(|rule| rule.is_enabled = false);
    }
    let found = levels(&settings, "objects");
    assert!(found.iter().all(|(level, _)| *level == Level::Warning), "{found:?}");
    assert!(settings.missing_rules(&at("objects")).abort_uploads);
}

#[test]
fn a_rule_for_another_prefix_does_not_abort_our_uploads() {
    let mut settings = sound();
    if let Setting::Known(rules) = &mut settings.lifecycle {
        rules.iter_mut().for_each(|rule| rule.prefix = "releases/".into());
    }
    assert!(settings.missing_rules(&at("objects")).abort_uploads);
    assert!(!settings.missing_rules(&at("releases/a")).abort_uploads);
}

#[test]
fn init_never_shortens_how_long_versions_are_kept() {
    let bare = |versioning| Settings { versioning, lifecycle: Setting::Known(Vec::new()), ..sound() };
    for (versioning, forget) in [
        (Setting::Known(Versioning::Unset), true),
        (Setting::Known(Versioning::Enabled), false),
        (Setting::Known(Versioning::Suspended), false),
        (Setting::Lacking, false),
        (Setting::Hidden("AccessDenied".into()), false),
    ] {
        let missing = bare(versioning.clone()).missing_rules(&at(""));
        assert_eq!(missing.forget_overwritten, forget, "{versioning:?}");
        assert!(missing.abort_uploads);
    }
}

#[test]
fn what_a_server_lacks_is_no_fault() {
    let settings = Settings {
        versioning: Setting::Lacking,
        encryption: Setting::Lacking,
        public_block: Setting::Lacking,
        public_policy: Setting::Lacking,
        lifecycle: Setting::Lacking,
    };
    let found = levels(&settings, "");
    assert_eq!(found.len(), 4);
    assert!(found.iter().all(|(level, _)| *level == Level::Lacking), "{found:?}");
    assert_eq!(settings.missing_rules(&at("")), MissingRules::default());
}

#[test]
fn a_public_bucket_is_an_error_whatever_is_blocked() {
    for public_block in [Setting::Known(PublicBlock::default()), Setting::Lacking] {
        let settings = Settings { public_policy: Setting::Known(true), public_block, ..sound() };
        let found = levels(&settings, "");
        assert!(
            matches!(found.as_slice(), [(Level::Error, text)] if text.starts_with("public")),
            "{found:?}"
        );
    }
    let partly = PublicBlock { restrict: false, ..PublicBlock::ALL };
    let settings = Settings { public_block: Setting::Known(partly), ..sound() };
    assert!(matches!(levels(&settings, "").as_slice(), [(Level::Warning, _)]));
}
