//! A request that a worker leaves, or comes back, on `mr.ctl.drain.<worker>`. It may be lost. The
//! sender watches the worker's notices, and sends it again.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::WorkerId;
use crate::omit;

/// To the worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DrainRequest {
    /// Milliseconds until the worker may be killed; `None` leaves it its own grace period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_ms: Option<u64>,
    /// It is needed again: a worker that stands by serves, and any other one ignores the request.
    #[serde(default, skip_serializing_if = "omit::is_default")]
    pub recalled: bool,
}

/// To the API, which asks the worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainWorker {
    /// The worker.
    pub worker: WorkerId,
    /// Milliseconds until the worker may be killed; `None` leaves it its own grace period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_ms: Option<u64>,
}
