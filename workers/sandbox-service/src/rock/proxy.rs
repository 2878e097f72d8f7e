//! Requests to servers within a sandbox: `…/sandboxes/ID/proxy/port/3000/PATH`. The port may stand in
//! the header `X-Rock-Target-Port` or the query `rock_target_port` instead.

use axum::extract::{Request, State};
use axum::http::HeaderName;
use axum::response::{IntoResponse, Response};

use super::envelope::{Asker, Failure};
use crate::ports::{self, PortError};
use crate::service::{Service, ServiceError, invalid};

const PORT_HEADER: HeaderName = HeaderName::from_static("x-rock-target-port");
const PORT_QUERY: &str = "rock_target_port=";

pub(super) async fn ask(
    State(service): State<Service>,
    Asker(owner): Asker,
    request: Request,
) -> Result<Response, Failure> {
    let answered = match target(&request) {
        Err(error) => Err(error.into()),
        Ok(Target { sandbox, port, path }) => match service.use_it(owner, sandbox) {
            Err(error) => Err(error.into()),
            Ok(sandbox) => ports::ask(&service, sandbox, port, &path, request).await,
        },
    };
    // The status of a proxy: who asks may know nothing of this protocol.
    Ok(answered.unwrap_or_else(|error: PortError| (error.status(), error.to_string()).into_response()))
}

/// What a request is for.
struct Target<'r> {
    sandbox: &'r str,
    port: u16,
    /// With the query.
    path: String,
}

fn target(request: &Request) -> Result<Target<'_>, ServiceError> {
    let (path, query) = (request.uri().path(), request.uri().query());
    // The router has found these parts; they are taken as they were written, not decoded.
    let (sandbox, path) = path
        .strip_prefix("/sandboxes/")
        .and_then(|rest| rest.split_once("/proxy"))
        .ok_or_else(|| invalid("path", path, "write /sandboxes/ID/proxy/port/PORT/PATH"))?;
    let (in_path, path) = match path.strip_prefix("/port/") {
        None => (None, path),
        Some(rest) => {
            let end = rest.find('/').unwrap_or(rest.len());
            (Some(&rest[..end]), &rest[end..])
        }
    };
    let in_header = request.headers().get(PORT_HEADER).and_then(|value| value.to_str().ok());
    let pairs = || query.into_iter().flat_map(|query| query.split('&'));
    let in_query = pairs().find_map(|pair| pair.strip_prefix(PORT_QUERY));
    let named: Vec<&str> = [in_path, in_header, in_query].into_iter().flatten().collect();
    let [port] = named[..] else {
        let remedy = "name it once: in the path, by X-Rock-Target-Port or by rock_target_port";
        return Err(invalid("port", named.join(", "), remedy));
    };
    let query: Vec<&str> = pairs().filter(|pair| !pair.starts_with(PORT_QUERY)).collect();
    let path = if path.is_empty() { "/" } else { path };
    let path = if query.is_empty() { path.to_owned() } else { format!("{path}?{}", query.join("&")) };
    Ok(Target { sandbox, port: ports::port(port)?, path })
}
