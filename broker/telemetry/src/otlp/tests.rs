use std::sync::Mutex;
use std::time::Instant;

use axum::Router;
use axum::body::Bytes as Body;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::{Span as Received, span};
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::*;
use crate::spans::{MAX_LINKS, Span, SpanRef, Tracer};

/// How a receiver answers.
#[derive(Debug, Clone, Copy)]
enum Answer {
    Taken,
    Refused(StatusCode),
    /// This many times 503, then taken.
    BusyFirst(usize),
    Never,
}

/// A receiver of traces: what it took, and how many requests it got.
struct Receiver {
    endpoint: String,
    spans: Arc<Mutex<Vec<Received>>>,
    services: Arc<Mutex<Vec<String>>>,
    requests: watch::Receiver<usize>,
}

impl Receiver {
    async fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let (spans, services) =
            (Arc::<Mutex<Vec<Received>>>::default(), Arc::<Mutex<Vec<String>>>::default());
        let (sender, requests) = watch::channel(0);
        let (into, names) = (spans.clone(), services.clone());
        let take = async move |_: HeaderMap, body: Body| {
            let mut before = 0;
            sender.send_modify(|requests| {
                before = *requests;
                *requests += 1;
            });
            match answer {
                Answer::Never => std::future::pending().await,
                Answer::Refused(status) => return status,
                Answer::BusyFirst(times) if before < times => return StatusCode::SERVICE_UNAVAILABLE,
                Answer::BusyFirst(_) | Answer::Taken => {}
            }
            for resource in ExportTraceServiceRequest::decode(body).unwrap().resource_spans {
                names.lock().unwrap().push(format!("{:?}", resource.resource));
                let scopes = resource.scope_spans.into_iter();
                into.lock().unwrap().extend(scopes.flat_map(|scope| scope.spans));
            }
            StatusCode::OK
        };
        let router = Router::new().route("/v1/traces", post(take));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { endpoint, spans, services, requests }
    }

    fn tracer(&self, more: &[(&str, &str)]) -> Tracer {
        let own = [("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", self.endpoint.as_str())];
        let settings = read(&[&own, more].concat()).unwrap().expect("an endpoint is set");
        Tracer::new(Exporter::start(settings, "millrace-test").unwrap())
    }

    fn spans(&self) -> Vec<Received> {
        self.spans.lock().unwrap().clone()
    }
}

fn read(variables: &[(&str, &str)]) -> Result<Option<Settings>> {
    Settings::read(|name| variables.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).to_owned()))
}

fn span(span_id: u64) -> Span {
    Span {
        at: SpanRef { trace_id: 7, span_id },
        parent: Some(1),
        name: "generate".into(),
        kind: SpanKind::Consumer,
        start_ns: 1_000,
        end_ns: 3_000,
        attributes: Vec::new(),
        links: Vec::new(),
        error: None,
    }
}

#[tokio::test]
async fn spans_arrive_with_the_ids_that_were_given() {
    let receiver = Receiver::start(Answer::Taken).await;
    let tracer = receiver.tracer(&[]);
    let links = (1..=2 * MAX_LINKS as u64).map(|span_id| SpanRef { trace_id: 9, span_id }).collect();
    tracer.record(Span { links, error: Some("too late".to_owned()), ..span(5) });
    tracer.record(Span { parent: None, start_ns: 9_000, end_ns: 2_000, ..span(1) });
    tracer.finish().await;
    let spans = receiver.spans();
    let [first, root] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!(first.trace_id, 7_u128.to_be_bytes());
    assert_eq!(
        (&first.span_id[..], &first.parent_span_id[..]),
        (&5_u64.to_be_bytes()[..], &1_u64.to_be_bytes()[..])
    );
    assert_eq!((first.start_time_unix_nano, first.end_time_unix_nano), (1_000, 3_000));
    assert_eq!((first.name.as_str(), first.kind()), ("generate", span::SpanKind::Consumer));
    assert_eq!((first.links.len(), first.dropped_links_count as usize), (MAX_LINKS, MAX_LINKS));
    assert_eq!(first.status.as_ref().unwrap().message, "too late");
    assert!(root.parent_span_id.is_empty() && root.status.as_ref().is_none_or(|status| status.code == 0));
    assert_eq!(
        (root.start_time_unix_nano, root.end_time_unix_nano),
        (9_000, 9_000),
        "no span ends before it starts"
    );
    let resource = receiver.services.lock().unwrap().join("");
    assert!(resource.contains("millrace-test"), "{resource}");
}

#[tokio::test]
async fn a_receiver_that_is_busy_for_a_moment_gets_everything_once() {
    let receiver = Receiver::start(Answer::BusyFirst(2)).await;
    let tracer = receiver.tracer(&[]);
    tracer.record(span(5));
    tracer.finish().await;
    assert_eq!(receiver.spans().len(), 1);
    assert_eq!(*receiver.requests.borrow(), 3);
}

#[tokio::test]
async fn a_receiver_that_refuses_costs_its_spans_alone() {
    for status in [StatusCode::TOO_MANY_REQUESTS, StatusCode::UNAUTHORIZED] {
        let receiver = Receiver::start(Answer::Refused(status)).await;
        let Tracer(Some(exporter)) = receiver.tracer(&[]) else { unreachable!("it is on") };
        exporter.push(span(5).into_data(exporter.scope()));
        exporter.clone().finish().await;
        assert_eq!(exporter.waiting.load(Relaxed), 0, "{status}: what is refused is not kept");
    }
}

/// Nobody who reports a span ever waits, and the end of the process is bounded too.
#[tokio::test]
async fn a_receiver_that_never_answers_delays_nobody() {
    let receiver = Receiver::start(Answer::Never).await;
    let bounds = [("OTEL_BSP_MAX_QUEUE_SIZE", "4"), ("OTEL_EXPORTER_OTLP_TIMEOUT", "600000")];
    let tracer = receiver.tracer(&bounds);
    let begun = Instant::now();
    (0..100_000).for_each(|number| tracer.record(span(number + 1)));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let Tracer(Some(exporter)) = &tracer else { unreachable!("it is on") };
    assert_eq!(exporter.waiting.load(Relaxed), 4, "the queue is bounded, what is being sent included");
    tracer.finish().await;
    assert!(begun.elapsed() < 3 * FINISH, "{:?}", begun.elapsed());
    assert_eq!(receiver.spans().len(), 0);
    assert!(*receiver.requests.borrow() > 0, "it was asked");
}

#[tokio::test]
async fn processes_agree_on_which_traces_are_sampled() {
    let receiver = Receiver::start(Answer::Taken).await;
    let share = ("OTEL_TRACES_SAMPLER_ARG", "0.25");
    let tracers = ["traceidratio", "parentbased_traceidratio"]
        .map(|sampler| receiver.tracer(&[("OTEL_TRACES_SAMPLER", sampler), share]));
    let ids =
        || (1..=4_000_u128).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
    let sampled = tracers.map(|tracer| ids().filter(|id| tracer.samples(*id)).collect::<Vec<_>>());
    assert_eq!(sampled[0], sampled[1]);
    assert!((800..1_200).contains(&sampled[0].len()), "{}", sampled[0].len());
}

#[test]
fn traces_are_off_unless_an_endpoint_is_set() {
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/");
    let is_off = |variables: &[(&str, &str)]| read(variables).unwrap().is_none();
    assert!(is_off(&[]));
    assert!(is_off(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]), "empty is not set");
    for off in [
        ("OTEL_SDK_DISABLED", "TRUE"),
        ("OTEL_TRACES_EXPORTER", "none"),
        ("OTEL_TRACES_SAMPLER", "always_off"),
        ("OTEL_TRACES_SAMPLER", "parentbased_always_off"),
    ] {
        assert!(is_off(&[endpoint, off]), "{off:?}");
    }
    let settings = read(&[endpoint]).unwrap().unwrap();
    assert_eq!(settings.endpoint, "http://collector:4318/v1/traces");
    let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://traces/otlp");
    assert_eq!(read(&[endpoint, own]).unwrap().unwrap().endpoint, "https://traces/otlp", "as it is");
    assert!(!Tracer::default().is_on() && !Tracer::default().samples(1));
}

#[test]
fn a_value_that_is_not_supported_is_named() {
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");
    for wrong in [
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4318"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "file:///etc/passwd"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_TRACES_SAMPLER", "xray"),
        ("OTEL_TRACES_SAMPLER", "parentbased_"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
    ] {
        let error = read(&[endpoint, wrong]).expect_err(wrong.1).to_string();
        assert!(error.starts_with(wrong.0), "{wrong:?}: {error}");
    }
    for ratio in ["", "-0.1", "1.01", "NaN", "half"] {
        let ratio = ("OTEL_TRACES_SAMPLER_ARG", ratio);
        let sampled = read(&[endpoint, ("OTEL_TRACES_SAMPLER", "traceidratio"), ratio]);
        assert_eq!(sampled.is_err(), !ratio.1.is_empty(), "{ratio:?}");
    }
    let own =
        [("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")];
    assert!(read(&[&[endpoint][..], &own].concat()).is_ok(), "the one for traces decides");
}
