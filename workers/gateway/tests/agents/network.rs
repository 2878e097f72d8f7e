//! Which hosts an agent in a sandbox reaches: those that its run asks for and its worker allows.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use millrace_gateway::Step;
use millrace_sandbox::egress::rules::{Private, Rules};
use millrace_sandbox::egress::{Egress, EgressSettings};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::sandbox::{TELL, told};
use super::testing::words;
use super::world::{PATIENCE, World};

/// Ways out to `allowed`. `mirror.test` and what is below it are this machine, which the operator permits at
/// `server`; `meta.test` is where clouds answer, `lan.test` a private network.
fn egress(allowed: &[String], server: SocketAddr) -> Egress {
    let settings =
        EgressSettings::new(Rules::read(allowed).unwrap(), vec![Private(server)], "--agents-network");
    let resolver = |name: &str| match name {
        "meta.test" => Ok(vec![IpAddr::from([169, 254, 169, 254])]),
        "lan.test" => Ok(vec![IpAddr::from([10, 1, 2, 3])]),
        _ => Ok(vec![IpAddr::from([127, 0, 0, 1])]),
    };
    Egress::new(EgressSettings { resolver: Arc::new(resolver), ..settings })
}

/// A server whose page has the first line of what it was asked.
async fn pages() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(page(stream));
        }
    });
    address
}

async fn page(mut stream: TcpStream) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(stream.read_u8().await?);
    }
    let line = String::from_utf8_lossy(&request).lines().next().unwrap_or_default().to_owned();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", line.len());
    stream.write_all((head + &line).as_bytes()).await?;
    stream.shutdown().await
}

/// What each of these agents begins with.
const TRIES: &str = r#"
import http.client, socket
PROXY = os.environ.get("https_proxy", "http://127.0.0.1:4181").removeprefix("http://")
def page(url):
    try: return urllib.request.urlopen(url).read().decode()
    except urllib.error.HTTPError as error: return error.code
def tunnel(host, port):
    proxy = http.client.HTTPConnection(PROXY, timeout=60)
    proxy.set_tunnel(host, port)
    try:
        proxy.request("GET", "/b")
        return proxy.getresponse().read().decode()
    except OSError as error: return str(error)
def is_open(*address):
    try: socket.create_connection(address, 3)
    except OSError: return False
    return True
"#;

#[tokio::test]
async fn an_agent_reaches_the_hosts_of_its_run_and_no_other() {
    let server = pages().await;
    let port = server.port();
    let hosts =
        ["mirror.test", "*.mirror.test", "meta.test", "lan.test"].map(|host| format!("{host}:{port}"));
    let world = World::with_network(egress(&hosts, server)).await;
    let agent = r#"
open_ = [page("http://mirror.test:PORT/a"), tunnel("a.mirror.test", PORT), tunnel("MIRROR.test.", PORT)]
shut = ["other.test", "mirror.test", "meta.test:PORT", "lan.test:PORT", "169.254.169.254", "a%00b:PORT"]
shut = [page("http://" + host + "/") for host in shut]
reasons = [tunnel(*at) for at in [("other.test", 443), ("meta.test", PORT), ("lan.test", PORT), ("127.0.0.1", PORT)]]
direct = [is_open(*at) for at in [("127.0.0.1", PORT), ("1.1.1.1", 53), ("169.254.169.254", 80), ("mirror.test", PORT)]]
env = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
tell(json.dumps([open_, shut, reasons, direct, env]))
"#;
    let agent = format!("{TELL}{TRIES}{}", agent.replace("PORT", &port.to_string()));
    let check = format!(
        "import urllib.request; print(0.5 if b'/c' in urllib.request.urlopen('http://mirror.test:{port}/c').read() else 0)"
    );
    let row = json!({ "files": { "agent.py": world.agent(&agent) }, "reward_files": { "check.py": check } });
    let settings = json!({ "reward": ["python3", "check.py"], "network": hosts, "context_tokens": 8_192 });
    let (told, last) = told(&world, &settings, row).await;
    let told: Vec<Value> = serde_json::from_str(&told).unwrap_or_else(|error| panic!("{error}: {told}"));
    assert_eq!(told[0], json!(["GET /a HTTP/1.1", "GET /b HTTP/1.1", "GET /b HTTP/1.1"]));
    // The last one has a zero byte, and is no request.
    assert_eq!(told[1], json!([403, 403, 403, 403, 403, 400]));
    for (reason, (host, why)) in told[2].as_array().unwrap().iter().zip([
        ("other.test:443", "is not on the list of this sandbox"),
        ("meta.test", "leads to 169.254.169.254"),
        ("lan.test", &format!("--agents-network-private 10.1.2.3:{port}")),
        ("127.0.0.1", "cannot be reached from a sandbox"),
    ]) {
        let reason = reason.as_str().unwrap();
        assert!(reason.contains("403") && reason.contains(host) && reason.contains(why), "{reason}");
    }
    assert_eq!(told[3], json!([false, false, false, false]));
    let (proxy, own) = ("http://127.0.0.1:4181", "127.0.0.1,localhost");
    let env = json!({ "HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "http_proxy": proxy, "https_proxy": proxy, "NO_PROXY": own, "no_proxy": own });
    assert_eq!(told[4], env);
    // The reward's program reaches the same.
    assert_eq!(last.reward, 0.5, "{last:?}");
}

#[tokio::test]
async fn an_agent_whose_run_asks_for_nothing_has_no_way_out() {
    let server = pages().await;
    let hosts = [format!("mirror.test:{}", server.port())];
    let world = World::with_network(egress(&hosts, server)).await;
    let agent = format!(
        "{TELL}{TRIES}tell([is_open('127.0.0.1', 4181), [name for name in os.environ if 'proxy' in name.lower()]])"
    );
    let row = json!({ "files": { "agent.py": world.agent(&agent) } });
    assert_eq!(told(&world, &json!({}), row).await.0, "[False, []]");
}

#[tokio::test]
async fn a_run_that_asks_for_more_than_its_worker_allows_fails_with_the_remedy() {
    let hosts = ["a.test:443".to_owned(), "*.b.test:443".to_owned()];
    let server = SocketAddr::from(([127, 0, 0, 1], 443));
    let (open, shut) =
        (World::with_network(egress(&hosts, server)).await, World::sandboxed(Vec::new()).await);
    let agent = format!("{TELL}tell('a')");
    for (world, network, named, remedy) in [
        (&open, json!(["a.test:443", "a.test:80"]), "a.test:80", "--agents-network a.test:80"),
        (&open, json!(["b.test:443"]), "b.test:443", "remove it, or start workers with"),
        (&shut, json!(["a.test:443"]), "a.test:443", "--agents-network a.test:443"),
        // Of a submitter that checks less.
        (&open, json!(["10.0.0.1:80"]), "10.0.0.1:80", "of a private network"),
        (&open, json!(["a.test"]), "a.test", "write host:port"),
    ] {
        let row = json!({ "files": { "agent.py": world.agent(&agent) } });
        match world.begin(&json!({ "network": network }), row).unwrap().step(0, 0, &[]).await {
            Step::Impossible(reason) => {
                let named = format!("environment.network={named:?} is refused");
                assert!(reason.contains(&named) && reason.contains(remedy), "{network}: {reason}");
            }
            other => panic!("{network}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn the_connections_of_an_agent_end_with_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let hosts = [format!("mirror.test:{}", server.port())];
    let world = World::with_network(egress(&hosts, server)).await;
    let agent = format!(
        "{TELL}{TRIES}proxy = socket.create_connection(('127.0.0.1', 4181))\n\
         proxy.sendall(b'CONNECT {} HTTP/1.1\\r\\n\\r\\n')\n\
         tell(proxy.recv(12).decode())\nimport time; time.sleep(600)",
        hosts[0]
    );
    let row = json!({ "files": { "agent.py": world.agent(&agent) } });
    let session = world.begin(&json!({ "network": hosts }), row).unwrap();
    let told = session.step(0, 0, &[]).await;
    assert!(
        matches!(&told, Step::Done(done) if words(&done.observation).contains("HTTP/1.1 200")),
        "{told:?}"
    );
    let (mut served, _) = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
    // The run no longer needs it; it is killed with its sandbox.
    world.agents.retain(|_, _, _| false);
    let end = timeout(PATIENCE, served.read(&mut [0])).await.expect("the connection ends");
    assert_eq!(end.unwrap_or(0), 0);
}
