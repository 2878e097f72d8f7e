//! Makes, lists and ends sandboxes. E2B's clients send their key as `X-API-Key`.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Bytes;
use axum::extract::{FromRequestParts, Path, Query, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::requests::{ListOf, NewSandbox, Timeout};
use super::told::{Failure, described, opened, told};
use crate::hosted::{Hosted, Labels};
use crate::keys::Owner;
use crate::service::{Service, ServiceError, Wanted, invalid};

/// Seconds that a sandbox lives whose client says nothing.
const TIMEOUT_S: i64 = 300;
/// Sandboxes of a page at most.
const PAGE: usize = 100;
/// The header with the token of the next page.
const NEXT: &str = "x-next-token";

type Answer = Result<Response, Failure>;

/// Who asks. It stands before the body among the arguments of a handler: without a known key no body
/// is read.
#[derive(Debug)]
pub(super) struct Asker(Owner);

impl FromRequestParts<Service> for Asker {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, Failure> {
        let words = "no known key: send `X-API-Key: KEY`, by E2B_API_KEY";
        let owner = service.owner(&parts.headers);
        owner.map(Self).ok_or_else(|| Failure::new(StatusCode::UNAUTHORIZED, words))
    }
}

fn body<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    let read = &mut serde_json::Deserializer::from_slice(bytes);
    serde_path_to_error::deserialize(read).map_err(|error| {
        let field = error.path().to_string();
        invalid("body", field, error.inner().to_string()).into()
    })
}

/// How long a sandbox may live from now on.
fn life_of(service: &Service, seconds: Option<i64>) -> Result<Duration, Failure> {
    let (seconds, most) = (seconds.unwrap_or(TIMEOUT_S), service.settings().life);
    let asked = u64::try_from(seconds).ok().map(Duration::from_secs).filter(|asked| *asked <= most);
    asked.ok_or_else(|| {
        invalid("timeout", seconds.to_string(), format!("0 to {} seconds", most.as_secs())).into()
    })
}

pub(super) async fn create(
    State(service): State<Service>,
    Asker(owner): Asker,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer {
    let asked: NewSandbox = body(&bytes)?;
    if let Some((field, remedy)) = asked.refused() {
        return Err(Failure::not_served(field, remedy));
    }
    match service.image(owner, &asked.template).await {
        Ok(_) => {}
        Err(ServiceError::Invalid { remedy, .. }) => {
            let words = format!("there is no template {:?}: {remedy}", asked.template);
            return Err(Failure::new(StatusCode::NOT_FOUND, words));
        }
        Err(error) => return Err(error.into()),
    }
    let life = life_of(&service, asked.timeout)?;
    let hosts = asked.network.and_then(|network| network.allow_out).unwrap_or_default();
    let network = service.settings().network.read(&hosts)?;
    // A request that is repeated under its key is one request.
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok());
    let id = key.map_or_else(|| Uuid::now_v7().simple().to_string(), |key| owner.name_of(key));
    let request = key.map(|_| Sha256::digest(&bytes).into());
    if let Some(made) = key.and_then(|_| service.look(owner, &id).ok()) {
        return repeated(&made, made.wanted.labels.request == request);
    }
    let metadata = asked.metadata.unwrap_or_default();
    let mut env = asked.env_vars.unwrap_or_default();
    for (name, value) in
        [("E2B_SANDBOX", "true"), ("E2B_SANDBOX_ID", &id), ("E2B_TEMPLATE_ID", &asked.template)]
    {
        env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    }
    let wanted = Wanted {
        id: Some(id),
        image: asked.template,
        life: Some(life),
        env,
        network,
        labels: Labels { metadata, request, ..Labels::default() },
        ..Wanted::default()
    };
    match service.make(owner, wanted).await {
        Ok(hosted) => Ok(told(StatusCode::CREATED, &opened(&hosted))),
        Err(error @ ServiceError::Invalid { field: "sandbox_id", .. }) if key.is_some() => {
            Err(Failure::new(StatusCode::CONFLICT, error.to_string()).again())
        }
        Err(error) => Err(error.into()),
    }
}

fn repeated(made: &Hosted, same: bool) -> Answer {
    if same {
        return Ok(told(StatusCode::CREATED, &opened(made)));
    }
    let words = "this idempotency key made a sandbox by another request; use a key of its own";
    Err(Failure::new(StatusCode::CONFLICT, words))
}

pub(super) async fn info(
    State(service): State<Service>,
    Asker(owner): Asker,
    Path(id): Path<String>,
) -> Answer {
    let hosted = service.look(owner, &id)?;
    let mut all = described(&hosted);
    all["envdAccessToken"] = hosted.token.reveal().into();
    Ok(told(StatusCode::OK, &all))
}

pub(super) async fn kill(
    State(service): State<Service>,
    Asker(owner): Asker,
    Path(id): Path<String>,
) -> Answer {
    service.stop(owner, &id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Moves the end of a sandbox, in either direction.
pub(super) async fn set_timeout(
    State(service): State<Service>,
    Asker(owner): Asker,
    Path(id): Path<String>,
    bytes: Bytes,
) -> Answer {
    let hosted = service.look(owner, &id)?;
    let Timeout { timeout } = body(&bytes)?;
    let seconds = timeout.ok_or_else(|| invalid("timeout", "", "the request needs it"))?;
    end_after(&hosted, life_of(&service, Some(seconds))?, false)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Tells what opens a sandbox. Its end is put off, but never made earlier.
pub(super) async fn connect(
    State(service): State<Service>,
    Asker(owner): Asker,
    Path(id): Path<String>,
    bytes: Bytes,
) -> Answer {
    let hosted = service.look(owner, &id)?;
    let asked: Timeout = if bytes.is_empty() { Timeout { timeout: None } } else { body(&bytes)? };
    end_after(&hosted, life_of(&service, asked.timeout)?, true)?;
    Ok(told(StatusCode::OK, &opened(&hosted)))
}

fn end_after(hosted: &Hosted, life: Duration, later: bool) -> Result<(), ServiceError> {
    let moved = hosted.end_after(life, later);
    if moved { Ok(()) } else { Err(ServiceError::Missing(hosted.id.clone())) }
}

pub(super) async fn not_served(_: Asker) -> Answer {
    let remedy = "pausing, forks, snapshots, metrics, logs, networks, templates, volumes and secrets are \
                  not there";
    Err(Failure::not_served("this path", remedy))
}

/// The list of older clients: no pages.
pub(super) async fn list_all(
    State(service): State<Service>,
    Asker(owner): Asker,
    Query(asked): Query<ListOf>,
) -> Answer {
    let page = page(service.all(owner), &ListOf { limit: None, next_token: None, ..asked }, usize::MAX)?;
    Ok(told(StatusCode::OK, &page.0.iter().map(|hosted| described(hosted)).collect()))
}

pub(super) async fn list(
    State(service): State<Service>,
    Asker(owner): Asker,
    Query(asked): Query<ListOf>,
) -> Answer {
    let limit = asked.limit.unwrap_or(PAGE);
    if limit == 0 || limit > PAGE {
        return Err(invalid("limit", limit.to_string(), format!("1 to {PAGE}")).into());
    }
    let (page, next) = page(service.all(owner), &asked, limit)?;
    let all: Value = page.iter().map(|hosted| described(hosted)).collect();
    let mut answer = told(StatusCode::OK, &all);
    if let Some(next) = next.and_then(|next| HeaderValue::try_from(next).ok()) {
        answer.headers_mut().insert(NEXT, next);
    }
    Ok(answer)
}

/// Where a sandbox stands in lists: by when it was made, then by name.
type Standing = (u128, String);

fn standing(hosted: &Hosted) -> Standing {
    (micros(hosted.started), hosted.id.clone())
}

/// Since 1970, as exactly as clients are told.
fn micros(at: SystemTime) -> u128 {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros()
}

/// One page, and the token of the next one: the standing of the last sandbox told, behind which it
/// goes on whatever was made or ended meanwhile.
fn page(
    mut all: Vec<Arc<Hosted>>,
    asked: &ListOf,
    limit: usize,
) -> Result<(Vec<Arc<Hosted>>, Option<String>), Failure> {
    let states = asked.state.as_deref().unwrap_or("running").split(',').map(str::trim);
    let mut running = false;
    for state in states {
        match state {
            "running" => running = true,
            "paused" => {}
            other => return Err(invalid("state", other, "running or paused").into()),
        }
    }
    let newest_first = match asked.order.as_deref().unwrap_or("desc") {
        "desc" => true,
        "asc" => false,
        other => return Err(invalid("order", other, "asc or desc").into()),
    };
    let after = asked.started_after.as_deref().map(read_moment).transpose()?;
    let from = asked.next_token.as_deref().map(read_token).transpose()?;
    let metadata = asked.metadata.as_deref().map(pairs).transpose()?.unwrap_or_default();
    let is_asked = |hosted: &Arc<Hosted>| {
        let has = |(name, value): &(String, String)| hosted.wanted.labels.metadata.get(name) == Some(value);
        running
            && metadata.iter().all(has)
            && asked.template.as_ref().is_none_or(|template| *template == hosted.wanted.image)
            && after.is_none_or(|after| micros(hosted.started) > micros(after))
            && from.as_ref().is_none_or(|from| {
                let at = standing(hosted);
                if newest_first { at < *from } else { at > *from }
            })
    };
    all.retain(is_asked);
    if newest_first {
        all.sort_by_cached_key(|hosted| Reverse(standing(hosted)));
    } else {
        all.sort_by_cached_key(|hosted| standing(hosted));
    }
    let more = all.len() > limit;
    all.truncate(limit);
    let next = all.last().filter(|_| more).map(|last| {
        let (at, id) = standing(last);
        format!("{at}.{id}")
    });
    Ok((all, next))
}

fn read_moment(text: &str) -> Result<SystemTime, Failure> {
    let read = chrono::DateTime::parse_from_rfc3339(text).map(SystemTime::from);
    read.map_err(|error| invalid("startedAfter", text, format!("write it by RFC 3339: {error}")).into())
}

fn read_token(text: &str) -> Result<Standing, Failure> {
    let read = text.split_once('.').and_then(|(at, id)| Some((at.parse().ok()?, id.to_owned())));
    read.ok_or_else(|| invalid("nextToken", text, "send what `x-next-token` said").into())
}

/// Names and values that a client encoded one by one, and then all together.
fn pairs(text: &str) -> Result<Vec<(String, String)>, Failure> {
    let wrong = || Failure::from(invalid("metadata", text, "write it as NAME=VALUE&NAME=VALUE"));
    let decode = |text: &str| {
        percent_decode_str(text).decode_utf8().map(|text| text.into_owned()).map_err(|_| wrong())
    };
    let twice = |text: &str| decode(&decode(&text.replace('+', " "))?);
    let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('='));
    pairs
        .map(|pair| pair.ok_or_else(wrong).and_then(|(name, value)| Ok((twice(name)?, twice(value)?))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_decoded_as_the_client_encodes_it() {
        // What the client sends for {"user id": "a&b=c+d%", "é": ""}.
        let text = "user%2520id=a%2526b%253Dc%252Bd%2525&%25C3%25A9=";
        let read = pairs(text).unwrap();
        assert_eq!(read, [("user id".to_owned(), "a&b=c+d%".to_owned()), ("é".to_owned(), String::new())]);
        assert_eq!(pairs("").unwrap(), []);
        assert!(pairs("name").is_err() && pairs("a=%25FF").is_err());
    }

    #[test]
    fn what_is_no_token_or_moment_is_told_so() {
        assert_eq!(read_token("5.ab").unwrap(), (5, "ab".to_owned()));
        for wrong in ["", "5", "x.y", "-1.x"] {
            assert!(read_token(wrong).unwrap_err().words.contains("nextToken"), "{wrong}");
        }
        assert!(read_moment("2026-01-01T00:00:00+02:00").is_ok());
        assert!(read_moment("yesterday").unwrap_err().words.contains("RFC 3339"));
    }
}
