//! Calls as KEDA makes them, over real connections.

use std::collections::HashMap;

use millrace_coordinator::shell::leader::Term;
use tonic::client::Grpc as Client;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Streaming};

use super::*;

const FILE: &str = r#"
    interval_s = 0.5
    [[pool]]
    name = "generate"
    stages = ["generate"]
    max = 8
    target = { kind = "keda" }
    [[pool]]
    name = "env"
    stages = ["env_step"]
    max = 8
    target = { kind = "aws", group = "env" }
"#;

/// A leader that decides, and its endpoint.
struct Leader {
    scaler: ExternalScaler,
    channel: Channel,
    stop: CancellationToken,
    addr: SocketAddr,
}

fn leading() -> Term {
    let term = Term::default();
    term.extend(Instant::now() + Duration::from_secs(3_600), 1);
    term
}

fn scaler(term: Term) -> ExternalScaler {
    ExternalScaler { board: Board::default(), term, file: Arc::new(ScalingFile::parse(FILE).unwrap()) }
}

impl Leader {
    async fn start() -> Self {
        let (scaler, stop) = (scaler(leading()), CancellationToken::new());
        scaler.board.set("generate", decided(3));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (serving, stopped) = (scaler.clone(), stop.clone());
        tokio::spawn(async move { serving.serve_while_leading(listener, &stopped).await });
        Self { scaler, channel: connect(addr), stop, addr }
    }
}

fn connect(addr: SocketAddr) -> Channel {
    Endpoint::try_from(format!("http://{addr}")).unwrap().connect_lazy()
}

fn decided(desired: u32) -> Standing {
    Standing { desired, decided: Instant::now(), dry_run: false }
}

fn of(pool: &str) -> ScaledObjectRef {
    let scaler_metadata = HashMap::from([(POOL_KEY.to_owned(), pool.to_owned())]);
    ScaledObjectRef { name: "rl-generate".into(), namespace: "ml".into(), scaler_metadata }
}

async fn call<Question, Answer>(channel: &Channel, method: &str, question: Question) -> Result<Answer, Status>
where
    Question: prost::Message + Default + 'static,
    Answer: prost::Message + Default + 'static,
{
    let mut client = Client::new(channel.clone());
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path: PathAndQuery = path(method).parse().unwrap();
    let codec = ProstCodec::<Question, Answer>::default();
    Ok(client.unary(Request::new(question), path, codec).await?.into_inner())
}

async fn is_active(channel: &Channel, of: ScaledObjectRef) -> Result<bool, Status> {
    Ok(call::<_, IsActiveResponse>(channel, "IsActive", of).await?.result)
}

async fn value(channel: &Channel, pool: &str, metric: &str) -> Result<(i64, f64), Status> {
    let request = GetMetricsRequest { scaled_object_ref: Some(of(pool)), metric_name: metric.into() };
    let answer: GetMetricsResponse = call(channel, "GetMetrics", request).await?;
    let [value] = &answer.metric_values[..] else { panic!("{answer:?}") };
    assert_eq!(value.metric_name, METRIC);
    Ok((value.metric_value, value.metric_value_float))
}

async fn watch_active(channel: &Channel, pool: &str) -> Streaming<IsActiveResponse> {
    let mut client = Client::new(channel.clone());
    client.ready().await.unwrap();
    let codec = ProstCodec::<ScaledObjectRef, IsActiveResponse>::default();
    let path: PathAndQuery = path("StreamIsActive").parse().unwrap();
    client.server_streaming(Request::new(of(pool)), path, codec).await.unwrap().into_inner()
}

#[tokio::test]
async fn keda_gets_the_standing_decision() {
    let leader = Leader::start().await;
    let spec: GetMetricSpecResponse = call(&leader.channel, "GetMetricSpec", of("generate")).await.unwrap();
    let [spec] = &spec.metric_specs[..] else { panic!("{spec:?}") };
    assert_eq!((spec.metric_name.as_str(), spec.target_size, spec.target_size_float), (METRIC, 1, 1.0));
    assert_eq!(value(&leader.channel, "generate", METRIC).await.unwrap(), (3, 3.0));
    assert!(is_active(&leader.channel, of("generate")).await.unwrap());
    leader.scaler.board.set("generate", decided(0));
    assert_eq!(value(&leader.channel, "generate", METRIC).await.unwrap(), (0, 0.0), "it is decided");
    assert!(!is_active(&leader.channel, of("generate")).await.unwrap());
    let unknown = call::<_, IsActiveResponse>(&leader.channel, "StreamMetricSpec", of("generate")).await;
    assert_eq!(unknown.unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test]
async fn hostile_metadata_is_refused_with_words_and_never_with_zero() {
    let leader = Leader::start().await;
    let long = "x".repeat(10_000);
    let cases = [
        (of(""), Code::InvalidArgument, "generate"),
        (ScaledObjectRef::default(), Code::InvalidArgument, "pool"),
        (of("Generate"), Code::NotFound, "generate"),
        (of("../generate"), Code::NotFound, "generate"),
        (of("generate\r\n\0"), Code::NotFound, "generate"),
        (of(&long), Code::NotFound, "10000 bytes"),
        (of("env"), Code::FailedPrecondition, "keda"),
        (of(&"x".repeat(2 * MAX_REQUEST_BYTES)), Code::OutOfRange, ""),
    ];
    for (of, code, words) in cases {
        let refused = is_active(&leader.channel, of.clone()).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused:?}");
        assert!(refused.message().contains(words) && refused.message().len() < 1_000, "{refused:?}");
        let request = GetMetricsRequest { scaled_object_ref: Some(of.clone()), metric_name: METRIC.into() };
        let refused =
            call::<_, GetMetricsResponse>(&leader.channel, "GetMetrics", request).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused:?}");
        let refused =
            call::<_, GetMetricSpecResponse>(&leader.channel, "GetMetricSpec", of).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused:?}");
    }
    let nobody = GetMetricsRequest { scaled_object_ref: None, metric_name: METRIC.into() };
    let refused = call::<_, GetMetricsResponse>(&leader.channel, "GetMetrics", nobody).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let other = value(&leader.channel, "generate", "s0-cpu").await.unwrap_err();
    assert!(other.code() == Code::InvalidArgument && other.message().contains(METRIC), "{other:?}");
    // Bytes that are no message.
    let noise = GetMetricsRequest { scaled_object_ref: None, metric_name: long };
    let refused = call::<_, IsActiveResponse>(&leader.channel, "IsActive", noise).await.unwrap_err();
    assert!(refused.code() != Code::Ok, "{refused:?}");
    assert_eq!(value(&leader.channel, "generate", METRIC).await.unwrap(), (3, 3.0), "it serves on");
}

#[tokio::test]
async fn a_decision_that_does_not_stand_is_an_error() {
    let leader = Leader::start().await;
    let old = Instant::now() - AT_LEAST - Duration::from_secs(1);
    leader.scaler.board.set("generate", Standing { desired: 0, decided: old, dry_run: false });
    let stale = value(&leader.channel, "generate", METRIC).await.unwrap_err();
    assert!(stale.code() == Code::Unavailable && stale.message().contains("11 s ago"), "{stale:?}");
    leader.scaler.board.set("generate", Standing { desired: 0, decided: Instant::now(), dry_run: true });
    let dry = is_active(&leader.channel, of("generate")).await.unwrap_err();
    assert!(dry.code() == Code::FailedPrecondition && dry.message().contains("dry_run"), "{dry:?}");
    // Asked of the methods themselves: without a decision, nobody listens any more.
    leader.scaler.board.clear();
    let none = leader.scaler.is_active(&of("generate")).unwrap_err();
    assert_eq!(none.code(), Code::Unavailable, "{none:?}");
    let standby = scaler(Term::default());
    standby.board.set("generate", decided(0));
    let refused = standby.is_active(&of("generate")).unwrap_err();
    assert!(
        refused.code() == Code::Unavailable && refused.message().contains("does not lead"),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_stream_tells_changes_and_ends_with_the_term() {
    let leader = Leader::start().await;
    let mut stream = watch_active(&leader.channel, "generate").await;
    assert!(stream.message().await.unwrap().unwrap().result, "at once");
    // Another number is no change of activity.
    leader.scaler.board.set("generate", decided(5));
    leader.scaler.board.set("generate", decided(0));
    assert!(!stream.message().await.unwrap().unwrap().result);
    leader.scaler.board.set("generate", decided(1));
    assert!(stream.message().await.unwrap().unwrap().result);
    leader.scaler.board.clear();
    let ended = stream.message().await.unwrap_err();
    assert_eq!(ended.code(), Code::Unavailable, "{ended:?}");
}

/// KEDA leaves out what it cannot connect to, so a standby must not listen.
#[tokio::test]
async fn only_a_leader_that_decides_listens() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (scaler, stop) = (scaler(leading()), CancellationToken::new());
    let serving = tokio::spawn(serve(free, scaler.clone(), stop.clone()).await.unwrap());
    let channel = connect(free);
    assert_eq!(is_active(&channel, of("generate")).await.unwrap_err().code(), Code::Unavailable);
    scaler.board.set("generate", decided(2));
    until(async || is_active(&channel, of("generate")).await.is_ok()).await;
    let mut stream = watch_active(&channel, "generate").await;
    assert!(stream.message().await.unwrap().unwrap().result);
    // A client that holds its stream open does not keep the port.
    scaler.board.clear();
    until(async || tokio::net::TcpStream::connect(free).await.is_err()).await;
    scaler.board.set("generate", decided(2));
    until(async || is_active(&channel, of("generate")).await.is_ok()).await;
    stop.cancel();
    serving.await.unwrap();
    // An address in use is told at the start.
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    assert!(serve(taken.local_addr().unwrap(), scaler, stop).await.is_err());
}

/// A peer that sends no HTTP/2, or nothing at all, delays nobody.
#[tokio::test]
async fn a_peer_that_hangs_delays_nobody() {
    use tokio::io::AsyncWriteExt;
    let leader = Leader::start().await;
    let mut peers = Vec::new();
    for number in 0..100 {
        let mut peer = tokio::net::TcpStream::connect(leader.addr).await.unwrap();
        if number % 2 == 0 {
            peer.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        }
        peers.push(peer);
    }
    assert!(is_active(&leader.channel, of("generate")).await.unwrap());
    leader.stop.cancel();
    until(async || tokio::net::TcpStream::connect(leader.addr).await.is_err()).await;
}

async fn until(mut condition: impl AsyncFnMut() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(60);
    while !condition().await {
        assert!(Instant::now() < give_up, "waited in vain");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
