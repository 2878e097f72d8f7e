//! An object store behind a gate: a test or a simulator decides what becomes of each request.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use crate::Objects;

/// What becomes of a request on its way to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It arrives.
    Pass,
    /// It does not, and whoever asked is told so.
    Fail,
    /// Of what a write brings the first half is kept, and whoever asked is told that it failed. A conditional
    /// create passes: stores make those whole or not at all.
    Tear,
}

/// Decides what becomes of requests; may take its time.
#[async_trait]
pub trait Gate: Send + Sync + 'static {
    /// A request sets out.
    async fn request(&self) -> Fate;
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

impl Gated {
    async fn request(&self) -> Result<bool> {
        match self.gate.request().await {
            Fate::Pass => Ok(true),
            Fate::Tear => Ok(false),
            Fate::Fail => Err(failed("the request got lost")),
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
        let whole = self.request().await? || matches!(opts.mode, PutMode::Create);
        if !whole {
            let bytes: Bytes = payload.into();
            let half = PutPayload::from_bytes(bytes.slice(..bytes.len() / 2));
            self.inner.put_opts(location, half, opts).await?;
            return Err(failed("the connection broke in the middle"));
        }
        self.answer(self.inner.put_opts(location, payload, opts).await).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.request().await?;
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.request().await?;
        self.answer(self.inner.get_opts(location, options).await).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let gate = self.gate.clone();
        let reached = locations.then(move |location| {
            let gate = gate.clone();
            async move {
                if gate.request().await == Fate::Fail {
                    Err(failed("the request got lost"))
                } else {
                    location
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
        self.request().await?;
        self.inner.copy_opts(from, to, options).await
    }
}
