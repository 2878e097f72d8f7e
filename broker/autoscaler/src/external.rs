//! KEDA's external scaler over gRPC: tells the standing decision about a pool. It never answers 0
//! because something is unknown: KEDA would end every worker. It answers with an error instead, and
//! KEDA leaves the pool as it is.
//!
//! Only the leader that decides listens. KEDA calls all addresses of the Service in turn and leaves
//! out those that it cannot connect to; a standby that answered with an error would fail every
//! second call.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use futures::future::BoxFuture;
use futures::stream;
use millrace_coordinator::shell::leader::Term;
use millrace_schemas::limits::MAX_SHOWN_BYTES;
use millrace_schemas::text::shown;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codegen::http::{Request as HttpRequest, Response as HttpResponse};
use tonic::server::Grpc;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

use crate::board::{Board, Decisions, Standing};
use crate::spec::{PoolSpec, ScalingFile, TargetSpec};
use protocol::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec, MetricValue,
    ScaledObjectRef, path,
};

pub mod protocol;

/// The metric that the HPA follows: workers that the pool is to have, of which each is worth one.
pub const METRIC: &str = "desired-workers";
/// The key in a trigger's metadata that names the pool.
pub const POOL_KEY: &str = "pool";
/// A decision that was not confirmed for so many intervals no longer stands.
const CONFIRMED_WITHIN: u32 = 3;
/// The same at least, where intervals are short.
const AT_LEAST: Duration = Duration::from_secs(10);
/// Bytes of a request, at most: metadata is a few names.
const MAX_REQUEST_BYTES: usize = 64 * 1024;
/// Streams of a connection at once, at most: KEDA holds one for each ScaledObject.
const MAX_STREAMS: u32 = 256;
/// Between two looks whether this process leads.
const LOOK: Duration = Duration::from_millis(250);
/// Before the address is bound again after a failure.
const REBIND: Duration = Duration::from_secs(1);
/// For calls in progress when the term ends.
const DRAIN: Duration = Duration::from_secs(2);
/// A peer that does not answer for so long is given up.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));

/// What the endpoint answers from.
#[derive(Clone)]
pub struct ExternalScaler {
    /// The standing decisions.
    pub board: Board,
    /// They hold while this term does.
    pub term: Term,
    /// The pools.
    pub file: Arc<ScalingFile>,
}

/// Serves KEDA at `addr` while this process leads and decides.
///
/// Consumes: calls. Produces: answers from the board. Waits for: leadership. Unblocked by:
/// `shutdown`. On failure: binds again.
///
/// # Errors
/// At the start, the address cannot be listened on.
pub async fn serve(
    addr: SocketAddr,
    scaler: ExternalScaler,
    shutdown: CancellationToken,
) -> std::io::Result<impl Future<Output = ()> + use<>> {
    // What cannot be bound is told at the start, and not when this process first leads.
    drop(TcpListener::bind(addr).await?);
    Ok(async move {
        while !shutdown.is_cancelled() {
            tokio::select! {
                () = scaler.until(true) => {}
                () = shutdown.cancelled() => return,
            }
            match TcpListener::bind(addr).await {
                Ok(listener) => scaler.clone().serve_while_leading(listener, &shutdown).await,
                Err(error) => {
                    tracing::error!(%addr, %error, "cannot serve KEDA; trying again");
                    tokio::time::sleep(REBIND).await;
                }
            }
        }
    })
}

impl ExternalScaler {
    /// Whether this process leads and has decided.
    fn decides(&self) -> bool {
        self.term.holds() && !self.board.follow().borrow().is_empty()
    }

    /// Waits until this process decides, or no longer does.
    async fn until(&self, decides: bool) {
        while self.decides() != decides {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Serves at `listener` until the term or the process ends.
    pub async fn serve_while_leading(self, listener: TcpListener, shutdown: &CancellationToken) {
        let addr = listener.local_addr();
        tracing::info!(?addr, "serving KEDA");
        let over = CancellationToken::new();
        let ended = {
            let (scaler, shutdown, over) = (self.clone(), shutdown.clone(), over.clone());
            async move {
                tokio::select! {
                    () = scaler.until(false) => {}
                    () = shutdown.cancelled() => {}
                }
                over.cancel();
            }
        };
        let serving = Server::builder()
            .max_concurrent_streams(MAX_STREAMS)
            .http2_keepalive_interval(Some(KEEPALIVE.0))
            .http2_keepalive_timeout(Some(KEEPALIVE.1))
            .serve_with_incoming_shutdown(Methods(self), TcpIncoming::from(listener), ended);
        let bounded = async {
            over.cancelled().await;
            tokio::time::sleep(DRAIN).await;
        };
        tokio::select! {
            served = serving => {
                if let Err(error) = served {
                    tracing::warn!(%error, "stopped serving KEDA");
                }
            }
            // A client that keeps its connection open does not keep this process.
            () = bounded => {}
        }
        tracing::info!(?addr, "no longer serving KEDA");
    }

    /// The pool that the metadata names.
    fn pool(&self, of: Option<&ScaledObjectRef>) -> Result<&PoolSpec, Status> {
        let named = of.and_then(|of| of.scaler_metadata.get(POOL_KEY)).filter(|name| !name.is_empty());
        let keda = |pool: &&PoolSpec| pool.target == TargetSpec::Keda;
        let known = || {
            self.file.pools.iter().filter(keda).map(|pool| pool.name.as_str()).collect::<Vec<_>>().join(", ")
        };
        let Some(name) = named else {
            let remedy = format!("set metadata.{POOL_KEY} of the trigger to one of: {}", known());
            return Err(Status::invalid_argument(format!(
                "the trigger's metadata has no {POOL_KEY}: {remedy}"
            )));
        };
        let Some(pool) = self.file.pools.iter().find(|pool| pool.name == *name) else {
            let name = shown(name, MAX_SHOWN_BYTES);
            return Err(Status::not_found(format!(
                "{POOL_KEY}={name:?} is not in the scaling file: give one of: {}",
                known()
            )));
        };
        if pool.target != TargetSpec::Keda {
            return Err(Status::failed_precondition(format!(
                "{POOL_KEY}={name:?} has another target: set target = {{ kind = \"keda\" }} in the scaling file"
            )));
        }
        Ok(pool)
    }

    /// The workers that a pool is to have.
    fn desired(&self, of: Option<&ScaledObjectRef>) -> Result<u32, Status> {
        let pool = self.pool(of)?;
        let decisions = self.board.follow();
        let standing = decisions.borrow().get(&pool.name).copied();
        self.standing(pool, standing)
    }

    fn standing(&self, pool: &PoolSpec, standing: Option<Standing>) -> Result<u32, Status> {
        if !self.term.holds() {
            return Err(Status::unavailable("this coordinator does not lead: ask the leader"));
        }
        let name = &pool.name;
        let Some(Standing { desired, decided, dry_run }) = standing else {
            return Err(Status::unavailable(format!(
                "nothing is decided yet about {POOL_KEY}={name:?}: ask again"
            )));
        };
        if dry_run {
            return Err(Status::failed_precondition(
                "the autoscaler decides without effect: set dry_run = false in the scaling file",
            ));
        }
        let age = decided.elapsed();
        if age > self.confirmed_within() {
            let age_s = age.as_secs();
            return Err(Status::unavailable(format!(
                "the last decision about {POOL_KEY}={name:?} was made {age_s} s ago and not confirmed since: see the coordinator's log"
            )));
        }
        Ok(desired)
    }

    fn confirmed_within(&self) -> Duration {
        AT_LEAST.max(self.file.interval() * CONFIRMED_WITHIN)
    }

    fn is_active(&self, of: &ScaledObjectRef) -> Result<IsActiveResponse, Status> {
        Ok(IsActiveResponse { result: self.desired(Some(of))? > 0 })
    }

    /// The answer of `IsActive` whenever it changes, from now on; ends with the first error.
    fn stream_is_active(
        &self,
        of: ScaledObjectRef,
    ) -> impl Stream<Item = Result<IsActiveResponse, Status>> + use<> {
        let (scaler, decisions) = (self.clone(), self.board.follow());
        let start = Some((scaler, of, decisions, None));
        stream::unfold(start, |at| async move {
            let (scaler, of, mut decisions, mut told) = at?;
            loop {
                decisions.borrow_and_update();
                match scaler.is_active(&of) {
                    Ok(answer) if told == Some(answer) => scaler.change(&mut decisions).await,
                    Ok(answer) => {
                        told = Some(answer);
                        return Some((Ok(answer), Some((scaler, of, decisions, told))));
                    }
                    Err(error) => return Some((Err(error), None)),
                }
            }
        })
    }

    /// Waits for another decision, or for the end of the term or of the present decision.
    async fn change(&self, decisions: &mut watch::Receiver<Decisions>) {
        tokio::select! {
            // The sender lives as long as `self`.
            _ = decisions.changed() => {}
            () = tokio::time::sleep_until(Instant::now() + LOOK) => {}
        }
    }

    fn metric_spec(&self, of: &ScaledObjectRef) -> Result<GetMetricSpecResponse, Status> {
        self.pool(Some(of))?;
        let spec = MetricSpec { metric_name: METRIC.to_owned(), target_size: 1, target_size_float: 1.0 };
        Ok(GetMetricSpecResponse { metric_specs: vec![spec] })
    }

    fn metrics(&self, request: &GetMetricsRequest) -> Result<GetMetricsResponse, Status> {
        let desired = self.desired(request.scaled_object_ref.as_ref())?;
        if request.metric_name != METRIC {
            let name = shown(&request.metric_name, MAX_SHOWN_BYTES);
            return Err(Status::invalid_argument(format!(
                "metricName={name:?} is not known: ask for {METRIC}"
            )));
        }
        let value = MetricValue {
            metric_name: METRIC.to_owned(),
            metric_value: desired.into(),
            metric_value_float: desired.into(),
        };
        Ok(GetMetricsResponse { metric_values: vec![value] })
    }
}

/// The service, as tonic calls it.
#[derive(Clone)]
struct Methods(ExternalScaler);

impl Service<HttpRequest<Body>> for Methods {
    type Response = HttpResponse<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest<Body>) -> Self::Future {
        let scaler = self.0.clone();
        Box::pin(async move {
            let called = request.uri().path().to_owned();
            let is = |method: &str| called == path(method);
            Ok(if is("IsActive") {
                unary(request, move |of| scaler.is_active(&of)).await
            } else if is("GetMetricSpec") {
                unary(request, move |of| scaler.metric_spec(&of)).await
            } else if is("GetMetrics") {
                unary(request, move |of| scaler.metrics(&of)).await
            } else if is("StreamIsActive") {
                let method = service_fn(move |request: Request<ScaledObjectRef>| {
                    let answers = scaler.stream_is_active(request.into_inner());
                    async move { Ok::<_, Status>(Response::new(answers)) }
                });
                grpc::<IsActiveResponse, ScaledObjectRef>().server_streaming(method, request).await
            } else {
                // KEDA then asks by the methods that exist.
                Status::unimplemented("the methods are IsActive, StreamIsActive, GetMetricSpec, GetMetrics")
                    .into_http()
            })
        })
    }
}

fn grpc<Answer, Question>() -> Grpc<ProstCodec<Answer, Question>>
where
    Answer: prost::Message + Default + 'static,
    Question: prost::Message + Default + 'static,
{
    Grpc::new(ProstCodec::default()).max_decoding_message_size(MAX_REQUEST_BYTES)
}

async fn unary<Question, Answer>(
    request: HttpRequest<Body>,
    answer: impl Fn(Question) -> Result<Answer, Status> + Clone + Send + 'static,
) -> HttpResponse<Body>
where
    Answer: prost::Message + Default + 'static,
    Question: prost::Message + Default + 'static,
{
    let method = service_fn(move |request: Request<Question>| {
        let answered = answer(request.into_inner()).map(Response::new);
        async move { answered }
    });
    grpc::<Answer, Question>().unary(method, request).await
}

#[cfg(test)]
mod tests;
