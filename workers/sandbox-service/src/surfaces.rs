//! All protocols on one address.

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use millrace_http::unread::read_rest;

use crate::service::Service;
use crate::{e2b, gem, rock};

/// The paths of all protocols. No two of them have one in common. Without settings for environments
/// these are not served. A request that is refused is read to its end: its client shall read why.
pub fn routes(service: Service, gem: Option<gem::Settings>) -> Router {
    let rock_and_gem = rock::routes(service.clone()).merge(gem::routes(service.clone(), gem));
    let all = rock_and_gem.merge(e2b::routes(service.clone()));
    all.layer(from_fn_with_state(service, e2b::by_host)).layer(from_fn(read_rest))
}
