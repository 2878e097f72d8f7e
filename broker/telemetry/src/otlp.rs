//! Sends spans by OTLP over HTTP, in protobuf. Off unless an endpoint is set.
//!
//! The standard environment variables configure it. Those of headers, compression, batches and the
//! resource are read by the OpenTelemetry crates, the others here. A receiver that is away, slow or unwilling delays nobody: the queue is bounded, and what does not
//! fit is dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use opentelemetry::trace::{SpanKind, TraceId};
use opentelemetry::{InstrumentationScope, Key};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SamplingDecision, ShouldSample, SpanData, SpanProcessor,
};
use tokio::runtime::Handle;

/// Spans that wait, unless the environment sets another number: OpenTelemetry's default.
const QUEUE: usize = 2_048;
/// Time of one request, unless the environment sets another: OpenTelemetry's default.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time to send what is queued when the process ends.
const FINISH: Duration = Duration::from_secs(3);

/// How spans are sampled and sent.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Where requests go, with the path.
    endpoint: String,
    sampler: Sampler,
    queue: usize,
    timeout: Duration,
}

impl Settings {
    /// Reads the standard variables by `get`. `None`: nothing is to be recorded.
    ///
    /// # Errors
    /// A variable has a value that is not supported.
    pub(crate) fn read(get: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let get = |name: &str| get(name).filter(|value| !value.trim().is_empty());
        let is = |name: &str, wanted: &str| get(name).is_some_and(|value| value.eq_ignore_ascii_case(wanted));
        if is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none") {
            return Ok(None);
        }
        let Some(endpoint) = endpoint(&get)? else { return Ok(None) };
        for name in ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"] {
            if let Some(protocol) = get(name) {
                if protocol != "http/protobuf" {
                    bail!(
                        "{name}={protocol:?} is not supported: set http/protobuf, and an endpoint of the receiver that takes it (port 4318 by custom)"
                    );
                }
                // The more specific one comes first and decides.
                break;
            }
        }
        let Some(sampler) = sampler(&get)? else { return Ok(None) };
        let timeouts = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
        let timeout = timeouts.iter().find_map(|name| Some((name, get(name)?)));
        let timeout = timeout.map(|(name, value)| positive(name, &value, "milliseconds")).transpose()?;
        let name = "OTEL_BSP_MAX_QUEUE_SIZE";
        let queue = get(name).map(|value| positive(name, &value, "spans")).transpose()?;
        Ok(Some(Self {
            endpoint,
            sampler,
            queue: queue.map_or(QUEUE, |spans| spans as usize),
            timeout: timeout.map_or(TIMEOUT, Duration::from_millis),
        }))
    }
}

/// Where traces are sent; `None` if nowhere.
fn endpoint(get: &impl Fn(&str) -> Option<String>) -> Result<Option<String>> {
    let (traces, all) = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT");
    let (name, value, path) = match (get(traces), get(all)) {
        (Some(url), _) => (traces, url, ""),
        (None, Some(url)) => (all, url, "/v1/traces"),
        (None, None) => return Ok(None),
    };
    let url = reqwest::Url::parse(&value).ok();
    if !url.is_some_and(|url| ["http", "https"].contains(&url.scheme()) && url.has_host()) {
        // It may hold a password.
        bail!("{name} is no address of a receiver: give one like http://collector:4318");
    }
    Ok(Some(if path.is_empty() { value } else { format!("{}{path}", value.trim_end_matches('/')) }))
}

/// The sampler; `None` if it records nothing. Traces are decided by their ids alone, and the ids
/// follow from names, so `parentbased_` changes nothing.
fn sampler(get: &impl Fn(&str) -> Option<String>) -> Result<Option<Sampler>> {
    let (name, arg) = ("OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG");
    let value = get(name).unwrap_or_else(|| "always_on".to_owned());
    match value.strip_prefix("parentbased_").unwrap_or(&value) {
        "always_on" => Ok(Some(Sampler::AlwaysOn)),
        "always_off" => Ok(None),
        "traceidratio" => {
            let ratio = get(arg).unwrap_or_else(|| "1".to_owned());
            match ratio.parse::<f64>() {
                Ok(share) if (0.0..=1.0).contains(&share) => Ok(Some(Sampler::TraceIdRatioBased(share))),
                Ok(_) | Err(_) => {
                    bail!("{arg}={ratio:?} is no share of the traces: give a number from 0 to 1")
                }
            }
        }
        _ => {
            bail!("{name}={value:?} is not supported: give always_on, always_off or traceidratio, with {arg}")
        }
    }
}

fn positive(name: &str, value: &str, unit: &str) -> Result<u64> {
    match value.parse() {
        Ok(number) if number > 0 => Ok(number),
        Ok(_) | Err(_) => bail!("{name}={value:?} is no number of {unit}: give 1 or more"),
    }
}

/// The queue of spans, and the thread that sends them.
#[derive(Debug)]
pub(crate) struct Exporter {
    sampler: Sampler,
    processor: BatchSpanProcessor,
    scope: InstrumentationScope,
    /// Spans that are queued or being sent.
    waiting: Arc<AtomicUsize>,
    queue: usize,
}

impl Exporter {
    /// Starts to send. `service` is the name that the receiver shows, unless the environment sets
    /// one.
    ///
    /// # Errors
    /// The endpoint or a header in the environment is invalid.
    pub(crate) fn start(settings: Settings, service: &'static str) -> Result<Self> {
        millrace_objects::choose_ring();
        let Settings { endpoint, sampler, queue, timeout } = settings;
        let client =
            reqwest::Client::builder().timeout(timeout).build().context("failed to make a client")?;
        let client = OnRuntime { client, runtime: Handle::current() };
        let exporter = SpanExporter::builder().with_http().with_http_client(client).with_endpoint(endpoint);
        let exporter = exporter.build().context("failed to set up the export of traces")?;
        let waiting = Arc::new(AtomicUsize::new(0));
        let counted = Counted { exporter, waiting: waiting.clone(), failing: AtomicBool::new(false) };
        let config = BatchConfigBuilder::default().with_max_queue_size(queue).build();
        let mut processor = BatchSpanProcessor::new(counted, config);
        processor.set_resource(&resource(service));
        // The metrics exist from the start.
        count_exported(0);
        count_dropped("queue_full", 0);
        let scope = InstrumentationScope::builder("millrace").with_version(env!("CARGO_PKG_VERSION")).build();
        Ok(Self { sampler, processor, scope, waiting, queue })
    }

    pub(crate) fn scope(&self) -> InstrumentationScope {
        self.scope.clone()
    }

    pub(crate) fn samples(&self, trace: TraceId) -> bool {
        let sampled = self.sampler.should_sample(None, trace, "", &SpanKind::Internal, &[], &[]);
        sampled.decision == SamplingDecision::RecordAndSample
    }

    /// Queues a span, or drops it if the queue is full.
    pub(crate) fn push(&self, span: SpanData) {
        // Counted here, because the processor does not tell how many it dropped.
        if self.waiting.fetch_add(1, Relaxed) >= self.queue {
            self.waiting.fetch_sub(1, Relaxed);
            count_dropped("queue_full", 1);
            return;
        }
        self.processor.on_end(span);
    }

    /// Waits until everything queued is sent, at most [`FINISH`].
    pub(crate) async fn finish(self: Arc<Self>) {
        let exporter = self.clone();
        let ended = tokio::task::spawn_blocking(move || exporter.processor.shutdown_with_timeout(FINISH));
        if !matches!(ended.await, Ok(Ok(()))) {
            let spans = self.waiting.load(Relaxed);
            tracing::warn!(
                spans,
                "the receiver of traces did not take the last spans in time; they are lost"
            );
        }
    }
}

fn count_exported(spans: usize) {
    metrics::counter!("millrace_trace_spans_exported_total").increment(spans as u64);
}

fn count_dropped(reason: &'static str, spans: usize) {
    metrics::counter!("millrace_trace_spans_dropped_total", "reason" => reason).increment(spans as u64);
}

/// What the environment says about this process, and its name where it says none.
fn resource(service: &'static str) -> Resource {
    let said = Resource::builder().build();
    let name = said.get(&Key::from_static_str("service.name"));
    if name.is_some_and(|name| !name.as_str().starts_with("unknown_service")) {
        return said;
    }
    Resource::builder().with_service_name(service).build()
}

/// Counts what becomes of the spans.
#[derive(Debug)]
struct Counted {
    exporter: SpanExporter,
    waiting: Arc<AtomicUsize>,
    failing: AtomicBool,
}

impl opentelemetry_sdk::trace::SpanExporter for Counted {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let sent = self.exporter.export(batch).await;
        self.waiting.fetch_sub(spans, Relaxed);
        match &sent {
            Ok(()) => {
                count_exported(spans);
                if self.failing.swap(false, Relaxed) {
                    tracing::info!("the receiver of traces takes spans again");
                }
            }
            Err(error) => {
                count_dropped("not_taken", spans);
                if !self.failing.swap(true, Relaxed) {
                    tracing::warn!(%error, "the receiver of traces takes no spans; they are dropped and counted");
                }
            }
        }
        sent
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// An HTTP client for the processor's thread, which has no runtime of its own.
#[derive(Debug)]
struct OnRuntime {
    client: reqwest::Client,
    runtime: Handle,
}

#[async_trait]
impl HttpClient for OnRuntime {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        self.runtime.spawn(async move { client.send_bytes(request).await }).await?
    }
}

#[cfg(test)]
mod tests;
