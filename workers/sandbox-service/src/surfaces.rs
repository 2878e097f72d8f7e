//! All protocols on one address.

use axum::Router;

use crate::service::Service;
use crate::{e2b, gem, rock};

/// The paths of all protocols. No two of them have one in common. Without settings for environments
/// these are not served.
pub fn routes(service: Service, gem: Option<gem::Settings>) -> Router {
    rock::routes(service.clone()).merge(gem::routes(service.clone(), gem)).merge(e2b::routes(service))
}
