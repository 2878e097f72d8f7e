//! Whole files, to read and to write. A file's address may be signed instead of carrying the token,
//! so that something without the client can fetch it.

use std::io::Read as _;
use std::time::SystemTime;

use axum::body::Bytes;
use axum::extract::{FromRequest, Multipart, Query, Request};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use flate2::read::GzDecoder;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::FILE_BYTES;
use super::envd::{Meant, check_name, locked};
use super::paths::absolute;
use super::requests::FileOf;
use super::told::{Failure, told};
use crate::hosted::{Counts, Using};
use crate::keys::Secret;
use crate::service::{Service, invalid};

type Answer = Result<Response, Failure>;

fn open(meant: &Meant, asked: &FileOf, operation: &str) -> Result<Using, Failure> {
    check_name(asked.username.as_deref().unwrap_or_default())?;
    if meant.has_token || is_signed(asked, operation, &meant.hosted.token) {
        return Ok(meant.hosted.begin());
    }
    Err(locked())
}

/// Whether the address has a signature that only who knows the token can make, and that still holds.
#[expect(clippy::disallowed_methods, reason = "a signature holds until a moment of the clock of people")]
fn is_signed(asked: &FileOf, operation: &str, token: &Secret) -> bool {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    if asked.signature_expiration.is_some_and(|until| until < now) {
        return false;
    }
    let found = asked.signature.as_deref().unwrap_or_default();
    // Digests are compared, so that no comparison tells how much was right.
    Sha256::digest(found) == Sha256::digest(signature(asked, operation, token))
}

fn signature(asked: &FileOf, operation: &str, token: &Secret) -> String {
    let (path, user) = (asked.path.as_deref().unwrap_or_default(), asked.username.as_deref());
    let mut text = format!("{path}:{operation}:{}:{}", user.unwrap_or_default(), token.reveal());
    if let Some(until) = asked.signature_expiration {
        text += &format!(":{until}");
    }
    format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text)))
}

pub(super) async fn read(meant: Meant, Query(asked): Query<FileOf>) -> Answer {
    let sandbox = open(&meant, &asked, "read")?;
    Counts::add(&sandbox.counts.files);
    let path = asked.path.filter(|path| !path.is_empty());
    let path = path.ok_or_else(|| invalid("path", "", "name a file"))?;
    let bytes = sandbox.live.read(&absolute(&path), FILE_BYTES as u64).await?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response())
}

pub(super) async fn write(
    axum::extract::State(service): axum::extract::State<Service>,
    meant: Meant,
    Query(asked): Query<FileOf>,
    headers: HeaderMap,
    request: Request,
) -> Answer {
    let sandbox = open(&meant, &asked, "write")?;
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let mut written = Vec::new();
    if kind.starts_with("multipart/form-data") {
        let form = Multipart::from_request(request, &service).await;
        let mut form = form.map_err(|error| Failure::new(error.status(), error.body_text()))?;
        let wrong =
            |error: axum::extract::multipart::MultipartError| Failure::new(error.status(), error.body_text());
        while let Some(field) = form.next_field().await.map_err(wrong)? {
            if field.name() != Some("file") {
                continue;
            }
            let path = asked.path.clone().or_else(|| field.file_name().map(str::to_owned));
            let path = path.ok_or_else(|| invalid("path", "", "name each file"))?;
            written.push(put(&sandbox, &path, &field.bytes().await.map_err(wrong)?).await?);
        }
    } else {
        let bytes = Bytes::from_request(request, &service).await;
        let bytes = bytes.map_err(|error| Failure::new(error.status(), error.body_text()))?;
        let path = asked.path.as_deref().ok_or_else(|| invalid("path", "", "name a file"))?;
        let bytes = decoded(&headers, bytes).await?;
        written.push(put(&sandbox, path, &bytes).await?);
    }
    if written.is_empty() {
        return Err(invalid("form", "", "send files in fields named `file`").into());
    }
    Ok(told(StatusCode::OK, &written.into()))
}

async fn put(sandbox: &Using, path: &str, bytes: &[u8]) -> Result<Value, Failure> {
    Counts::add(&sandbox.counts.files);
    let path = absolute(path);
    sandbox.live.write(&path, bytes).await?;
    let name = path.rsplit('/').next().unwrap_or_default();
    Ok(json!({ "name": name, "type": "file", "path": path }))
}

/// A body without its compression, within its bound.
async fn decoded(headers: &HeaderMap, bytes: Bytes) -> Result<Bytes, Failure> {
    match headers.get(header::CONTENT_ENCODING).and_then(|encoding| encoding.to_str().ok()) {
        None | Some("identity") => Ok(bytes),
        Some("gzip") => {
            let read = tokio::task::spawn_blocking(move || inflated(&bytes)).await;
            read.map_err(|error| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?
        }
        Some(other) => Err(invalid("content-encoding", other, "gzip, or none").into()),
    }
}

fn inflated(bytes: &[u8]) -> Result<Bytes, Failure> {
    let mut read = Vec::new();
    let bound = FILE_BYTES as u64 + 1;
    GzDecoder::new(bytes)
        .take(bound)
        .read_to_end(&mut read)
        .map_err(|error| invalid("body", "", format!("it is no gzip: {error}")))?;
    if read.len() > FILE_BYTES {
        let words = format!("the file has more than {FILE_BYTES} bytes");
        return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, words));
    }
    Ok(read.into())
}
