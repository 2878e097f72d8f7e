//! The way from a sandbox to listed hosts, on real sockets. Names are resolved by the tests.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use millrace_sandbox::egress::rules::{Private, Rules};
use millrace_sandbox::egress::{Egress, EgressBounds, EgressError, EgressSettings, Gate, Resolve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes that no buffer on the way has room for.
const MUCH: usize = 16 * 1024 * 1024;

async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("in time")
}

fn rules(entries: &[&str]) -> Rules {
    Rules::read(&entries.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>()).unwrap()
}

/// A way out to `allowed`, with these private addresses.
fn egress(allowed: &[&str], private: &[SocketAddr], resolver: impl Resolve, bounds: EgressBounds) -> Egress {
    let private = private.iter().map(|address| Private(*address)).collect();
    let settings = EgressSettings::new(rules(allowed), private, "--hosts");
    Egress::new(EgressSettings { resolver: Arc::new(resolver), bounds, ..settings })
}

fn gate(allowed: &[&str], private: &[SocketAddr], resolver: impl Resolve) -> Gate {
    let egress = egress(allowed, private, resolver, EgressBounds::default());
    egress.open(rules(allowed)).unwrap()
}

/// A resolver to which every name has these addresses.
fn always(addresses: &[&str]) -> impl Resolve + use<> {
    let found: Vec<IpAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
    move |_: &str| Ok(found.clone())
}

/// A server that gives back what it gets. It counts its connections.
async fn echo(at: &str) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(at).await.unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                let (mut from, mut to) = stream.into_split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    (address, count)
}

/// Sends `head`; the status of the answer, all of it, and the connection.
async fn asked(gate: &Gate, head: &str) -> (u16, String, UnixStream) {
    let mut stream = soon(UnixStream::connect(gate.socket())).await.unwrap();
    let _ = soon(stream.write_all(head.as_bytes())).await;
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(b"\r\n\r\n") && soon(stream.read(&mut byte)).await.is_ok_and(|read| read == 1) {
        answer.push(byte[0]);
    }
    let answer = String::from_utf8(answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap_or_else(|| panic!("{head:?}: {answer:?}")).parse().unwrap();
    (status, answer, stream)
}

async fn tunnel(gate: &Gate, target: &str) -> (u16, String, UnixStream) {
    asked(gate, &format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n")).await
}

/// Whether bytes go to the other end and back.
async fn echoes(stream: &mut UnixStream) -> bool {
    let mut back = [0; 4];
    stream.write_all(b"ping").await.is_ok()
        && soon(stream.read_exact(&mut back)).await.is_ok()
        && &back == b"ping"
}

#[tokio::test]
async fn a_listed_host_is_reached_through_a_tunnel() {
    let (server, _) = echo("127.0.0.1:0").await;
    let gate = gate(&[&format!("mirror.test:{}", server.port())], &[server], always(&["127.0.0.1"]));
    let (status, _, mut stream) = tunnel(&gate, &format!("MIRROR.test.:{}", server.port())).await;
    assert_eq!((status, echoes(&mut stream).await), (200, true));
    // More than fits into buffers, and the end of one direction before that of the other.
    let (mut from, mut to) = stream.into_split();
    let sent: Vec<u8> = (0..MUCH).map(|i| (i * 31 % 251) as u8).collect();
    let sending = sent.clone();
    let writer = tokio::spawn(async move {
        to.write_all(&sending).await.unwrap();
        to.shutdown().await.unwrap();
    });
    let mut back = Vec::new();
    soon(from.read_to_end(&mut back)).await.unwrap();
    assert!(back == sent, "{} of {} bytes came back", back.len(), sent.len());
    writer.await.unwrap();
}

#[tokio::test]
async fn a_plain_request_reaches_its_host_and_a_second_one_on_the_same_connection_does_not() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let port = server.port();
    let gate = gate(&[&format!("mirror.test:{port}")], &[server], always(&["127.0.0.1"]));
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 1024];
        let read = stream.read(&mut request).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nfound").await.unwrap();
        stream.shutdown().await.unwrap();
        String::from_utf8(request[..read].to_vec()).unwrap()
    };
    let head = format!(
        "GET http://mirror.test:{port}/simple/?a=b HTTP/1.1\r\nHost: other\r\n\r\nGET http://x/ HTTP/1.1\r\n\r\n"
    );
    let (request, (status, _, mut stream)) = tokio::join!(serve, asked(&gate, &head));
    let expected =
        format!("GET /simple/?a=b HTTP/1.1\r\nHost: mirror.test:{port}\r\nConnection: close\r\n\r\n");
    assert_eq!((request, status), (expected, 200));
    let mut body = String::new();
    soon(stream.read_to_string(&mut body)).await.unwrap();
    assert_eq!(body, "found");
}

#[tokio::test]
async fn a_host_that_is_not_listed_is_refused_and_never_looked_up() {
    let looked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&looked);
    let resolver = move |_: &str| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(vec![IpAddr::from([127, 0, 0, 1])])
    };
    let (server, connections) = echo("127.0.0.1:0").await;
    let port = server.port();
    let gate = gate(&[&format!("mirror.test:{port}"), &format!("*.below.test:{port}")], &[server], resolver);
    for target in [
        "evil.test:443".to_owned(),
        "mirror.test:443".to_owned(),
        format!("below.test:{port}"),
        format!("mirror.test.evil.test:{port}"),
        format!("user@mirror.test:{port}"),
        format!("mirror.test:0{}", u32::from(port) + 65_536),
        // Permitted where a name leads there, but on no list.
        format!("127.0.0.1:{port}"),
        format!("[::ffff:127.0.0.1]:{port}"),
        format!("localhost:{port}"),
        "169.254.169.254:80".to_owned(),
        "1.1.1.1:443".to_owned(),
    ] {
        let (status, answer, _) = tunnel(&gate, &target).await;
        let shown = target.split('@').next_back().unwrap().split(':').next().unwrap();
        assert!(status == 403 && answer.contains(shown), "{target}: {answer}");
    }
    let (status, answer, _) = asked(&gate, "GET http://169.254.169.254/latest/ HTTP/1.1\r\n\r\n").await;
    assert!(status == 403 && answer.contains("169.254.169.254"), "{answer}");
    let (_, answer, mut stream) = tunnel(&gate, "evil.test:443").await;
    let mut body = String::new();
    soon(stream.read_to_string(&mut body)).await.unwrap();
    let reason = "evil.test:443 is not on the list of this sandbox; its owner may ask for it, within the operator's --hosts";
    assert!(answer.starts_with(&format!("HTTP/1.1 403 {reason}\r\n")), "{answer}");
    assert_eq!(body, format!("{reason}\n"));
    assert_eq!((looked.load(Ordering::SeqCst), connections.load(Ordering::SeqCst)), (0, 0));
}

#[tokio::test]
async fn a_listed_name_leads_to_no_address_that_is_not_public() {
    let (server, connections) = echo("127.0.0.1:0").await;
    let (other, _) = echo("127.0.0.1:0").await;
    let name = format!("mirror.test:{}", server.port());
    for addresses in [
        &["127.0.0.1"][..],
        &["169.254.169.254"],
        &["10.1.2.3"],
        &["192.168.1.1"],
        &["100.64.0.1"],
        &["0.0.0.0"],
        &["255.255.255.255"],
        &["::1"],
        &["::"],
        &["fe80::1"],
        &["fd00:ec2::254"],
        &["::ffff:127.0.0.1"],
        &["::ffff:169.254.169.254"],
        &["64:ff9b::a9fe:a9fe"],
        &["2002:7f00:1::"],
        // All of a name's addresses count, in any order.
        &["127.0.0.1", "1.1.1.1"],
        &["1.1.1.1", "127.0.0.1"],
    ] {
        // One port of an address is permitted, not the others.
        let gate = gate(&[&name], &[other], always(addresses));
        let (status, answer, _) = tunnel(&gate, &name).await;
        assert!(status == 403 && answer.contains(&format!("{name} leads to ")), "{addresses:?}: {answer}");
    }
    for addresses in [&["127.0.0.1", "10.1.2.3"], &["169.254.169.254", "127.0.0.1"]] {
        let gate = gate(&[&name], &[server], always(addresses));
        assert_eq!(tunnel(&gate, &name).await.0, 403, "{addresses:?}");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 0);
    // The remedy names what the operator may do, or that nobody may.
    let answer = tunnel(&gate(&[&name], &[], always(&["127.0.0.1"])), &name).await.1;
    assert!(answer.contains(&format!("--hosts-private {server}")), "{answer}");
    let answer = tunnel(&gate(&[&name], &[], always(&["169.254.169.254"])), &name).await.1;
    assert!(answer.contains("no sandbox reaches") && !answer.contains("private"), "{answer}");
}

#[tokio::test]
async fn a_name_is_resolved_once_so_that_a_second_answer_changes_nothing() {
    let (good, _) = echo("127.0.0.1:0").await;
    let (bad, reached) = echo(&format!("127.0.0.2:{}", good.port())).await;
    let looked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&looked);
    let resolver = move |_: &str| {
        let is_first = count.fetch_add(1, Ordering::SeqCst) == 0;
        Ok(vec![if is_first { good.ip() } else { bad.ip() }])
    };
    let name = format!("rebound.test:{}", good.port());
    let gate = gate(&[&name], &[good], resolver);
    let (status, _, mut stream) = tunnel(&gate, &name).await;
    assert_eq!((status, echoes(&mut stream).await), (200, true));
    assert_eq!(looked.load(Ordering::SeqCst), 1);
    // The second connection is another question, and its answer is checked as well.
    assert_eq!(tunnel(&gate, &name).await.0, 403);
    assert_eq!(reached.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn hosts_that_hang_or_are_not_there_stop_no_other_connection() {
    let (server, _) = echo("127.0.0.1:0").await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let resolver = move |name: &str| match name {
        // Until the test ends.
        "hung.test" => released.lock().unwrap().recv().map(|()| Vec::new()).map_err(io::Error::other),
        "unknown.test" => Err(io::Error::other("no such name")),
        "empty.test" => Ok(Vec::new()),
        _ => Ok(vec![IpAddr::from([127, 0, 0, 1])]),
    };
    let silent_address = silent.local_addr().unwrap();
    let allowed = [
        format!("mirror.test:{}", server.port()),
        format!("silent.test:{}", silent_address.port()),
        format!("closed.test:{}", closed.port()),
        "hung.test:443".to_owned(),
        "unknown.test:443".to_owned(),
        "empty.test:443".to_owned(),
    ];
    let allowed: Vec<&str> = allowed.iter().map(String::as_str).collect();
    let bounds = EgressBounds { reach: Duration::from_secs(2), ..EgressBounds::default() };
    let gate =
        egress(&allowed, &[server, silent_address, closed], resolver, bounds).open(rules(&allowed)).unwrap();
    let mut hung: Vec<UnixStream> = Vec::new();
    for _ in 0..8 {
        hung.push(tunnel(&gate, allowed[1]).await.2);
        let mut stream = UnixStream::connect(gate.socket()).await.unwrap();
        stream.write_all(b"CONNECT hung.test:443 HTTP/1.1\r\n\r\n").await.unwrap();
        hung.push(stream);
    }
    let (status, _, mut stream) = tunnel(&gate, allowed[0]).await;
    assert_eq!((status, echoes(&mut stream).await), (200, true));
    for target in [allowed[2], "unknown.test:443", "empty.test:443", "hung.test:443"] {
        let (status, answer, _) = tunnel(&gate, target).await;
        assert!(status == 502 && answer.contains(target), "{answer}");
    }
    drop(release);
}

#[tokio::test]
async fn a_peer_that_says_nothing_or_never_reads_is_cut_off() {
    let (server, _) = echo("127.0.0.1:0").await;
    let name = format!("mirror.test:{}", server.port());
    let short = Duration::from_millis(200);
    let bounds = EgressBounds { head: short, idle: short, ..EgressBounds::default() };
    let gate = egress(&[&name], &[server], always(&["127.0.0.1"]), bounds).open(rules(&[&name])).unwrap();
    // Nothing, and a head that never ends.
    for head in ["", "CONNECT mirror.test:1 HTTP/1.1\r\nX: "] {
        assert_eq!(asked(&gate, head).await.0, 408);
    }
    // It writes, and does not take what comes back: the proxy takes no more of it, and then leaves.
    let (status, _, mut stream) = tunnel(&gate, &name).await;
    assert_eq!(status, 200);
    assert!(soon(stream.write_all(&vec![7; MUCH])).await.is_err(), "{MUCH} bytes were taken");
    // A tunnel in which nothing moves.
    let (_, _, mut stream) = tunnel(&gate, &name).await;
    assert!(echoes(&mut stream).await);
    assert_eq!(soon(stream.read(&mut [0])).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn a_thousand_connections_are_answered_and_few_are_held() {
    let (server, connections) = echo("127.0.0.1:0").await;
    let name = format!("mirror.test:{}", server.port());
    let bounds = EgressBounds { connections: 20, ..EgressBounds::default() };
    let egress = egress(&[&name], &[server], always(&["127.0.0.1"]), bounds);
    let gate = Arc::new(egress.open(rules(&[&name])).unwrap());
    let other = egress.open(rules(&[&name])).unwrap();
    let mut all = JoinSet::new();
    for _ in 0..1_000 {
        let (gate, name) = (Arc::clone(&gate), name.clone());
        all.spawn(async move {
            let (status, answer, stream) = tunnel(&gate, &name).await;
            assert!(status == 200 || answer.contains("Retry-After: 1"), "{answer}");
            // Those that are there stay, the others go.
            (status == 200).then_some(stream)
        });
    }
    let held: Vec<UnixStream> = soon(all.join_all()).await.into_iter().flatten().collect();
    assert_eq!((held.len(), connections.load(Ordering::SeqCst)), (20, 20));
    let (status, answer, _) = tunnel(&gate, &name).await;
    assert!(status == 503 && answer.contains("too many connections"), "{answer}");
    // Another sandbox has its own.
    assert_eq!(tunnel(&other, &name).await.0, 200);
    drop(held);
    let again = async { while tunnel(&gate, &name).await.0 != 200 {} };
    soon(again).await;
}

#[tokio::test]
async fn what_is_open_ends_with_its_sandbox() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let name = format!("mirror.test:{}", server.port());
    let gate = gate(&[&name], &[server], always(&["127.0.0.1"]));
    let (accepted, (status, _, mut client)) = tokio::join!(listener.accept(), tunnel(&gate, &name));
    let mut served: TcpStream = accepted.unwrap().0;
    assert_eq!(status, 200);
    let socket = gate.socket().to_owned();
    drop(gate);
    // Both ends hear of it, and nobody listens any more.
    assert_eq!(soon(served.read(&mut [0])).await.unwrap_or(0), 0);
    assert_eq!(soon(client.read(&mut [0])).await.unwrap_or(0), 0);
    let gone = async { while UnixStream::connect(&socket).await.is_ok() {} };
    soon(gone).await;
}

#[tokio::test]
async fn another_process_of_the_machine_is_not_served() {
    let gate = gate(&["mirror.test:443"], &[], always(&["1.1.1.1"]));
    let name = gate.socket().to_str().unwrap().trim_start_matches('\0').to_owned();
    let program = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect('\\0' + sys.argv[1])\n\
        try: s.sendall(b'CONNECT a.test:1 HTTP/1.1\\r\\n\\r\\n'); print(len(s.recv(1)))\n\
        except (BrokenPipeError, ConnectionResetError): print(0)";
    let python = tokio::process::Command::new("python3").args(["-c", program, &name]).output();
    let ran = soon(python).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stdout).trim(), "0", "{}", String::from_utf8_lossy(&ran.stderr));
    // This one is.
    assert_eq!(tunnel(&gate, "a.test:1").await.0, 403);
}

#[tokio::test]
async fn a_sandbox_gets_no_way_to_what_its_operator_does_not_allow() {
    let egress = egress(&["a.test:443", "*.b.test:443"], &[], always(&["1.1.1.1"]), EgressBounds::default());
    let gate = egress.open(rules(&["c.b.test:443"])).unwrap();
    // The operator's list is the bound, not what a sandbox has.
    assert_eq!(tunnel(&gate, "a.test:443").await.0, 403);
    for beyond in ["a.test:80", "b.test:443", "*.c.test:443"] {
        let refused = egress.open(rules(&["a.test:443", beyond])).unwrap_err();
        assert_eq!(refused, EgressError::Beyond(beyond.parse().unwrap()));
    }
}
