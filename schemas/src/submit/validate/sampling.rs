//! Checks of sampling settings.

use super::Checks;
use crate::limits;
use crate::submit::{ModelSpec, RunSpec};

pub(super) fn check(spec: &RunSpec, checks: &mut Checks) {
    let r = &spec.rollout;
    checks.number("rollout.top_p", r.top_p, 1e-6, 1.0);
    checks.count("rollout.top_k", u64::from(r.top_k), 0, u64::from(limits::MAX_MODEL_DIMENSION));
    checks.number("rollout.min_p", r.min_p, 0.0, 1.0);
    let most = limits::MAX_STOP_STRINGS;
    let count = r.stop_strings.len();
    checks.require(count <= most, "rollout.stop_strings", count, format!("name at most {most} texts"));
    let bytes = limits::MAX_STOP_STRING_BYTES;
    for (i, text) in r.stop_strings.iter().enumerate() {
        checks.require(
            (1..=bytes).contains(&text.len()),
            &format!("rollout.stop_strings[{i}]"),
            format!("{text:?}"),
            format!("choose a text of 1 to {bytes} bytes"),
        );
    }
    let speaks = !matches!(spec.model, ModelSpec::Decoder { .. } | ModelSpec::Scripted);
    checks.require(
        count == 0 || speaks,
        "rollout.stop_strings",
        count,
        "a model without a tokenizer has no text; leave them out",
    );
}
