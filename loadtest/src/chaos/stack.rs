//! All processes of a run, each connected to nats-server through a proxy of its own.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use millrace_server::{ClusterMember, ServerError, ServerOptions, find_server, free_port, write_config};
use tokio::sync::Mutex;

use super::disk::Disk;
use super::process::{Process, Program};
use super::proxy::Proxy;
use super::role::{ALL, Role};

/// Size of the object store's disk, in MiB: room for the batches of an hour of runs. Memory is used only for what is
/// on it.
const DISK_MIB: u32 = 1536;

/// Seconds of silence after which a task is given to another worker, as for `millrace up` on one machine.
const ACK_WAIT_S: f64 = 6.0;

/// How to start.
#[derive(Debug, Clone)]
pub struct StackOptions {
    /// Folder of all that it writes; emptied first.
    pub folder: PathBuf,
    /// Three servers with three replicas instead of one.
    pub cluster: bool,
    /// Processes of a role, where they are other than [`Role::processes`].
    pub processes: BTreeMap<Role, usize>,
    /// Further arguments of a role's processes.
    pub arguments: BTreeMap<Role, Vec<String>>,
    /// Seconds of silence after which a task is given to another worker.
    pub ack_wait_s: f64,
    /// Give the object store a disk of its own.
    pub disk: bool,
}

impl StackOptions {
    /// One server, and the processes that each role has at least.
    #[must_use]
    pub const fn in_folder(folder: PathBuf) -> Self {
        Self {
            folder,
            cluster: false,
            processes: BTreeMap::new(),
            arguments: BTreeMap::new(),
            ack_wait_s: ACK_WAIT_S,
            disk: false,
        }
    }
}

/// All processes.
#[derive(Debug)]
pub struct Stack {
    /// Every process.
    pub members: Vec<Member>,
    /// The object store's disk, if it has one of its own.
    pub disk: Option<Disk>,
    /// Held while a fault fills the disk.
    pub disk_busy: Mutex<()>,
    /// The object store.
    pub objects: PathBuf,
    /// The servers themselves.
    pub servers: Vec<SocketAddr>,
    /// The way of the test itself to the servers; never disturbed.
    way: Proxy,
}

/// One process.
#[derive(Debug)]
pub struct Member {
    /// Its role.
    pub role: Role,
    /// The process.
    pub process: Process,
    /// Its way to nats-server; `None` for nats-server itself.
    pub proxy: Option<Proxy>,
    /// Held while a fault kills or pauses it.
    pub busy: Mutex<()>,
    /// Held while a fault disturbs its connection.
    pub line_busy: Mutex<()>,
}

/// A program that lies beside this one.
///
/// # Errors
/// It does not.
pub fn beside(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("failed to find this program")?;
    let path = own.with_file_name(name);
    ensure!(path.is_file(), "there is no {name} beside {}; `make build` makes both", own.display());
    Ok(path)
}

/// The programs, which lie beside this one.
struct Programs {
    millrace: PathBuf,
    worker: PathBuf,
    server: PathBuf,
}

impl Programs {
    fn find() -> anyhow::Result<Self> {
        let server = find_server(None).ok_or(ServerError::NotFound)?;
        Ok(Self { millrace: beside("millrace")?, worker: beside("millrace-worker")?, server })
    }
}

impl Stack {
    /// Starts everything. The processes wait for one another.
    ///
    /// # Errors
    /// A program is missing, the folder cannot be written, or there is no free port.
    pub async fn start(options: &StackOptions) -> anyhow::Result<Self> {
        let programs = Programs::find()?;
        let folder = prepare(&options.folder)?;
        let disk = options.disk.then(|| Disk::mount(&folder.join("disk"), DISK_MIB)).transpose()?;
        let objects = folder.join("disk/objects");
        std::fs::create_dir_all(&objects)?;
        let (servers, mut members) = servers(&programs, &folder, options.cluster)?;
        let place = Place { programs, folder, objects: objects.clone(), options };
        for role in ALL.into_iter().filter(|role| *role != Role::Server) {
            let own = options.processes.get(&role).copied();
            let count = own.unwrap_or_else(|| role.processes(options.cluster));
            for number in 0..count {
                let proxy = Proxy::start(servers.clone()).await?;
                let process = Process::keep(place.program(role, number, proxy.url()));
                members.push(Member::new(role, process, Some(proxy)));
            }
        }
        let way = Proxy::start(servers.clone()).await?;
        Ok(Self { members, disk, disk_busy: Mutex::new(()), objects, servers, way })
    }

    /// Where the test itself reaches the servers.
    #[must_use]
    pub fn url(&self) -> &str {
        self.way.url()
    }

    /// The processes of a role.
    pub fn of(&self, role: Role) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(move |member| member.role == role)
    }
}

impl Member {
    fn new(role: Role, process: Process, proxy: Option<Proxy>) -> Self {
        Self { role, process, proxy, busy: Mutex::new(()), line_busy: Mutex::new(()) }
    }
}

fn prepare(folder: &Path) -> anyhow::Result<PathBuf> {
    let fail = || format!("failed to prepare folder={}", folder.display());
    if folder.exists() {
        std::fs::remove_dir_all(folder).with_context(fail)?;
    }
    std::fs::create_dir_all(folder.join("logs")).with_context(fail)?;
    folder.canonicalize().with_context(fail)
}

fn servers(
    programs: &Programs,
    folder: &Path,
    cluster: bool,
) -> anyhow::Result<(Vec<SocketAddr>, Vec<Member>)> {
    let count = Role::Server.processes(cluster);
    let ports = (0..count).map(|_| free_port()).collect::<Result<Vec<_>, _>>()?;
    let peers = (0..count).map(|_| free_port()).collect::<Result<Vec<_>, _>>()?;
    let mut members = Vec::new();
    for (number, port) in ports.iter().enumerate() {
        let name = format!("{}-{number}", Role::Server.name());
        let seat = ClusterMember { name: name.clone(), port: peers[number], peers: peers.clone() };
        let options = ServerOptions {
            port: Some(*port),
            seat: cluster.then_some(seat),
            ..ServerOptions::in_folder(folder.join(&name))
        };
        let config = write_config(&options)?.to_string_lossy().into_owned();
        let process = Process::keep(Program {
            tie: programs.millrace.clone(),
            path: programs.server.clone(),
            args: vec!["-c".into(), config],
            log: folder.join("logs").join(format!("{name}.log")),
            name,
        });
        members.push(Member::new(Role::Server, process, None));
    }
    let addresses = ports.into_iter().map(|port| (Ipv4Addr::LOCALHOST, port).into()).collect();
    Ok((addresses, members))
}

/// Where everything is.
struct Place<'a> {
    programs: Programs,
    folder: PathBuf,
    objects: PathBuf,
    options: &'a StackOptions,
}

impl Place<'_> {
    fn program(&self, role: Role, number: usize, url: &str) -> Program {
        let name = format!("{}-{number}", role.name());
        let objects = self.objects.to_string_lossy().into_owned();
        let stages: Vec<&str> = role.stages().iter().map(|stage| stage.name()).collect();
        let (stages, ack_wait) = (stages.join(","), self.options.ack_wait_s.to_string());
        let mut args = match role {
            Role::Coordinator => vec!["coordinator"],
            _ => vec!["--stages", &stages],
        };
        args.extend(["--id", &name, "--nats", url, "--objects", &objects]);
        if role == Role::Coordinator {
            let replicas = if self.options.cluster { "3" } else { "1" };
            args.extend(["--ack-wait", &ack_wait, "--replicas", replicas]);
        }
        let more = self.options.arguments.get(&role).into_iter().flatten();
        let path = if role == Role::Coordinator { &self.programs.millrace } else { &self.programs.worker };
        Program {
            args: args.into_iter().map(str::to_owned).chain(more.cloned()).collect(),
            tie: self.programs.millrace.clone(),
            path: path.clone(),
            log: self.folder.join("logs").join(format!("{name}.log")),
            name,
        }
    }
}

/// All processes, shared with the faults.
pub type SharedStack = Arc<Stack>;
