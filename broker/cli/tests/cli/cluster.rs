//! Three nats-servers in a cluster, configured as instances are: one `millrace init-auth` with several addresses, and
//! `infra/images/nats-node.sh` on each node. Clients and routes speak TLS.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use millrace_server::find::find_server;
use nix::sys::signal::Signal;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use super::support::{millrace, run, send, stderr, until};

const NODES: usize = 3;

struct Cluster {
    folder: TempDir,
    addresses: Vec<String>,
    port: u16,
    servers: Vec<Child>,
}

/// Addresses of the loopback interface that other tests do not take: a range of this process's own.
fn addresses() -> Vec<String> {
    let own = std::process::id();
    (1..=NODES).map(|node| format!("127.{}.{}.{node}", 64 + own % 128, own / 128 % 256)).collect()
}

impl Cluster {
    async fn start(hosts: &[String]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let addresses = addresses();
        let auth = folder.path().join("auth").to_string_lossy().into_owned();
        let mut words = vec!["init-auth", "--dir", &auth, "--place", "/etc/millrace"];
        hosts.iter().for_each(|host| words.extend(["--host", host]));
        let made = run(&words).await;
        assert!(made.status.success(), "{}", stderr(&made));
        let free = || TcpListener::bind((addresses[0].as_str(), 0)).unwrap().local_addr().unwrap().port();
        let port = free();
        let mut cluster = Self { folder, port, addresses: addresses.clone(), servers: Vec::new() };
        let route = free();
        for node in 0..NODES {
            cluster.spawn(node, route).await;
        }
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log(&self, node: usize) -> String {
        fs::read_to_string(self.path(&format!("node-{node}/log"))).unwrap_or_default()
    }

    /// The node's configuration as install.sh makes it, and the server with it.
    async fn spawn(&mut self, node: usize, route: u16) {
        let own = self.path(&format!("node-{node}"));
        let secrets = own.join("secrets");
        fs::create_dir_all(&secrets).unwrap();
        for (from, to) in [
            ("nats-server.conf", "nats-server.conf"),
            ("tls/server.pem", "server.pem"),
            ("tls/server.key", "server.key"),
            ("tls/ca.pem", "ca.pem"),
        ] {
            fs::copy(self.path("auth").join(from), secrets.join(to)).unwrap();
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../infra/images/nats-node.sh");
        let made = Command::new(script)
            .arg(&secrets)
            .arg(own.join("streams"))
            .env("MILLRACE_NODE", node.to_string())
            .env("MILLRACE_ADDRESS", &self.addresses[node])
            .env("MILLRACE_PEERS", self.addresses.join(","))
            .env("MILLRACE_CLIENT_PORT", self.port.to_string())
            .env("MILLRACE_ROUTE_PORT", route.to_string())
            .env("MILLRACE_MONITOR_PORT", "0")
            .output()
            .await
            .unwrap();
        assert!(made.status.success(), "{}", stderr(&made));
        let config = own.join("nats-server.conf");
        fs::write(&config, made.stdout).unwrap();
        let log = fs::File::create(own.join("log")).unwrap();
        let server = Command::new(find_server(None).expect("a nats-server; `make setup` brings it"))
            .arg("-c")
            .arg(&config)
            .stdin(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        self.servers.push(server);
    }

    /// All addresses, as NATS_URL of an instance has them.
    fn url(&self) -> String {
        let urls: Vec<String> = self.addresses.iter().map(|at| format!("tls://{at}:{}", self.port)).collect();
        urls.join(",")
    }

    /// `millrace` as `user`.
    fn command(&self, user: &str, words: &[&str]) -> Command {
        let mut command = millrace();
        command.args(words).env("NATS_URL", self.url()).env("MILLRACE_OBJECTS", self.path("objects"));
        command.env("MILLRACE_NATS_TLS_CA", self.path("auth/tls/ca.pem"));
        command.env("MILLRACE_NATS_NKEY", self.path(&format!("auth/keys/{user}.nk")));
        command
    }
}

#[tokio::test]
async fn three_servers_form_a_cluster_over_tls_and_one_may_die() {
    let mut cluster = Cluster::start(&addresses()).await;
    fs::create_dir(cluster.path("objects")).unwrap();
    let log = fs::File::create(cluster.path("coordinator.log")).unwrap();
    // Three copies of everything: only a cluster of three can make the streams.
    let mut coordinator =
        cluster.command("coordinator", &["coordinator", "--replicas", "3"]).stderr(log).spawn().unwrap();
    until("the coordinator answers", async || {
        let list = cluster.command("submitter", &["list"]).output().await.unwrap();
        // The servers may still be choosing their leaders, for which it waits.
        let ended = coordinator.try_wait().unwrap();
        assert!(ended.is_none(), "{}", fs::read_to_string(cluster.path("coordinator.log")).unwrap());
        list.status.success().then_some(())
    })
    .await;
    for node in 0..NODES {
        assert!(cluster.log(node).contains("Route connection created"), "{}", cluster.log(node));
    }
    // Whichever dies, the others go on; the command is given all addresses.
    let pid = cluster.servers[0].id().unwrap();
    send(pid, Signal::SIGKILL);
    cluster.servers[0].wait().await.unwrap();
    until("the other two answer", async || {
        cluster.command("submitter", &["list"]).output().await.unwrap().status.success().then_some(())
    })
    .await;
}

/// A certificate that does not name the nodes' addresses joins no cluster: routes are verified.
#[tokio::test]
async fn a_certificate_for_other_addresses_joins_no_cluster() {
    let cluster = Cluster::start(&["nats.example.com".into()]).await;
    until("a server refuses another's certificate", async || {
        let told = |node| {
            cluster.log(node).contains("doesn't contain any IP SANs") || cluster.log(node).contains("x509")
        };
        (0..NODES).any(told).then_some(())
    })
    .await;
    assert!((0..NODES).all(|node| !cluster.log(node).contains("JetStream cluster new metadata leader")));
}
