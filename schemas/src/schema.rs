//! JSON Schema of everything that travels or that people write, generated from the types.

use schemars::{Schema, schema_for};

use crate::{api, event, member, notice, outcome, policy, publish_weights, report, submit, train_shard};

/// Name and schema of every document, by name.
#[must_use]
pub fn all() -> Vec<(&'static str, Schema)> {
    vec![
        ("api_error", schema_for!(api::ApiError)),
        ("api_run_request", schema_for!(api::RunRequest)),
        ("api_status", schema_for!(api::Status)),
        ("batch", schema_for!(train_shard::Batch)),
        ("event", schema_for!(event::Event)),
        ("manifest", schema_for!(publish_weights::Manifest)),
        ("notice", schema_for!(notice::Notice)),
        ("outcome", schema_for!(outcome::Outcome)),
        ("policy", schema_for!(policy::Policy)),
        ("sign_of_life", schema_for!(member::Heartbeat)),
        ("report", schema_for!(report::Report)),
        ("run", schema_for!(submit::RunSpec)),
        ("task", schema_for!(crate::envelope::Task)),
        ("worker_notice", schema_for!(notice::WorkerNotice)),
    ]
}
