//! An object store behind a gate: a test or a simulator decides what becomes of each request.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use crate::Objects;

/// What becomes of a request on its way to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It arrives.
    Pass,
    /// The request fails, and the caller gets the error.
    Fail,
    /// A write keeps the first half of the content, and the caller gets an error. Over an object it
    /// does nothing, and a conditional create passes: stores do both at once or not at all.
    Tear,
    /// The store answers that it is forbidden, as one does whose credentials have expired.
    Refuse,
    /// A read gets "not found", as from a store that does not know the object yet. Other requests
    /// pass.
    Absent,
    /// A read gives other bytes than were written. Another request passes.
    Corrupt,
}

/// What is asked of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// To read an object, or to look at it.
    Read,
    /// To write or copy one.
    Write,
    /// To delete one.
    Delete,
}

/// Decides what becomes of requests; may take its time.
#[async_trait]
pub trait Gate: Send + Sync + 'static {
    /// A request for the object at `path` sets out.
    async fn request(&self, action: Action, path: &str) -> Fate;
    /// What was asked is done; `false` loses the answer.
    async fn answer(&self) -> bool;
}

/// `objects`, as they are seen through `gate`. Listing is not disturbed.
#[must_use]
pub fn gated(objects: &Objects, gate: Arc<dyn Gate>) -> Objects {
    Objects::over(Arc::new(Gated { inner: objects.store(), gate }))
}

struct Gated {
    inner: Arc<dyn ObjectStore>,
    gate: Arc<dyn Gate>,
}

fn failed(reason: &str) -> Error {
    Error::Generic { store: "gated", source: reason.into() }
}

fn forbidden(path: &Path) -> Error {
    Error::PermissionDenied { path: path.to_string(), source: "403 Forbidden".into() }
}

/// What was read, with a first byte that neither MessagePack nor UTF-8 knows.
async fn corrupted(answer: GetResult) -> Result<GetResult> {
    let (meta, range) = (answer.meta.clone(), answer.range.clone());
    let (attributes, extensions) = (answer.attributes.clone(), answer.extensions.clone());
    let parts: Vec<Bytes> = answer.into_stream().try_collect().await?;
    let mut bytes: BytesMut = parts.iter().flatten().copied().collect();
    if let Some(first) = bytes.first_mut() {
        *first = 0xc1;
    }
    let payload = GetResultPayload::Stream(futures::stream::iter([Ok(bytes.freeze())]).boxed());
    Ok(GetResult { payload, meta, range, attributes, extensions })
}

impl Gated {
    /// Whether the request arrives whole.
    async fn request(&self, action: Action, path: &Path) -> Result<bool> {
        match self.gate.request(action, path.as_ref()).await {
            Fate::Pass | Fate::Absent | Fate::Corrupt => Ok(true),
            Fate::Tear => Ok(false),
            Fate::Fail => Err(failed("the request got lost")),
            Fate::Refuse => Err(forbidden(path)),
        }
    }

    async fn answer<T>(&self, answer: Result<T>) -> Result<T> {
        if self.gate.answer().await { answer } else { Err(failed("the answer got lost")) }
    }
}

impl fmt::Debug for Gated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gated")
    }
}

impl fmt::Display for Gated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("gated")
    }
}

#[async_trait]
impl ObjectStore for Gated {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let whole = self.request(Action::Write, location).await? || matches!(opts.mode, PutMode::Create);
        if !whole {
            // Folder and S3 replace an object at once or not at all.
            let look = GetOptions { head: true, ..GetOptions::default() };
            if self.inner.get_opts(location, look).await.is_err() {
                let bytes: Bytes = payload.into();
                let half = PutPayload::from_bytes(bytes.slice(..bytes.len() / 2));
                self.inner.put_opts(location, half, opts).await?;
            }
            return Err(failed("the connection broke in the middle"));
        }
        self.answer(self.inner.put_opts(location, payload, opts).await).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.request(Action::Write, location).await?;
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let head = options.head;
        match self.gate.request(Action::Read, location.as_ref()).await {
            Fate::Pass | Fate::Tear => {}
            Fate::Fail => return Err(failed("the request got lost")),
            Fate::Refuse => return Err(forbidden(location)),
            Fate::Absent => {
                let (path, source) = (location.to_string(), "404 Not Found".into());
                return Err(Error::NotFound { path, source });
            }
            Fate::Corrupt if head => {}
            Fate::Corrupt => return corrupted(self.inner.get_opts(location, options).await?).await,
        }
        self.answer(self.inner.get_opts(location, options).await).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let gate = self.gate.clone();
        let reached = locations.then(move |location| {
            let gate = gate.clone();
            async move {
                let path = location?;
                match gate.request(Action::Delete, path.as_ref()).await {
                    Fate::Fail => Err(failed("the request got lost")),
                    Fate::Refuse => Err(forbidden(&path)),
                    Fate::Pass | Fate::Tear | Fate::Absent | Fate::Corrupt => Ok(path),
                }
            }
        });
        self.inner.delete_stream(reached.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.request(Action::Write, to).await?;
        self.inner.copy_opts(from, to, options).await
    }
}
