//! All protocols on one address.

use axum::Router;

use crate::service::Service;
use crate::{e2b, rock};

/// The paths of all protocols. No two of them have one in common.
pub fn routes(service: Service) -> Router {
    rock::routes(service.clone()).merge(e2b::routes(service))
}
