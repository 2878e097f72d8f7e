//! Behind walls: a long-lived sandbox for each agent. Its files, its processes and its network are its
//! own; a port on its loopback leads to the gateway, another to the hosts that its run asks for and its
//! worker allows, and nothing else leads out.

use std::collections::BTreeMap;
use std::path::PathBuf;

use async_trait::async_trait;
use millrace_sandbox::End;
use millrace_sandbox::egress::rules::Rules;
use millrace_sandbox::egress::{Egress, EgressError, EgressSettings, Gate};
use millrace_sandbox::live::{
    Event, Exec, FileKind, Forward, Host, LiveError, LiveSandbox, Process, Settings, Spec,
};
use millrace_schemas::file_name::is_inner_path;

use super::output::Written;
use super::{Ended, Gateway, Place, PlaceError, Program, Running, Walls, places_of, variables};

/// The agent's folder.
const FOLDER: &str = "/home/user";
/// The gateway's port within.
const PORT: u16 = 4180;
/// The worker's option that has the hosts which runs may ask for.
const FLAG: &str = "--agents-network";
/// The gateway's URL.
const GATEWAY: &str = "http://127.0.0.1:4180";
/// Where the machine's own programs are.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Bytes that a program may write to its output: more than one writes to be read. Beyond them it is
/// killed.
const OUTPUT_BYTES: u64 = 256 * 1024 * 1024;
/// Sandboxes that wait with their namespaces made.
const WARM: usize = 2;
/// The lowest code by which a shell tells of a signal.
const SIGNALLED: i32 = 128;

/// Sandboxes.
#[derive(Debug)]
pub struct Sandboxed {
    host: Host,
    read: Vec<PathBuf>,
    path: String,
    egress: Egress,
}

impl Sandboxed {
    /// Tries a sandbox as agents get it. `program` is `millrace-sandbox`; programs may read the folders
    /// `read` of this machine, at the same place, besides the system's. Each folder `bin` in one of
    /// them is on their `PATH`.
    ///
    /// # Errors
    /// This machine lacks a wall, or a folder is not there or not open to all users.
    pub async fn open(program: PathBuf, read: Vec<PathBuf>) -> Result<Self, LiveError> {
        let host = Host::open(Settings { warm: WARM, ..Settings::new(program) }).await?;
        let bins = read.iter().map(|folder| folder.join("bin")).filter(|bin| bin.is_dir());
        let bins = bins.map(|bin| bin.to_string_lossy().into_owned());
        let path = bins.chain([PATH.to_owned()]).collect::<Vec<_>>().join(":");
        let none = EgressSettings::new(Rules::default(), Vec::new(), FLAG);
        let walls = Self { host, read, path, egress: Egress::new(none) };
        let sandbox = walls.host.create(walls.spec("/".into(), None)).await?;
        let tried = sandbox.exec(Exec::new(["/bin/true"]), b"").await?;
        sandbox.end().await;
        match tried.end {
            End::Exit(0) => Ok(walls),
            end => Err(LiveError::Refused(format!("/bin/true ended by {end:?} in it"))),
        }
    }

    /// The same with ways to other hosts, for runs that ask for them.
    #[must_use]
    pub fn with_network(self, egress: Egress) -> Self {
        Self { egress, ..self }
    }

    fn spec(&self, socket: PathBuf, gate: Option<&Gate>) -> Spec {
        let env = gate.map(Gate::variables).unwrap_or_default();
        let forward =
            [Forward { port: PORT, to: socket }].into_iter().chain(gate.map(Gate::forward)).collect();
        Spec { read: self.read.clone(), forward, env, ..Spec::default() }
    }

    /// The way to these hosts; `None` if there are none.
    fn gate(&self, network: &[String]) -> Result<Option<Gate>, PlaceError> {
        if network.is_empty() {
            return Ok(None);
        }
        let refused = |entry: &str, remedy: &dyn std::fmt::Display| {
            PlaceError::Network(format!("environment.network={entry:?} is refused: {remedy}"))
        };
        let asked = Rules::read(network).map_err(|(entry, error)| refused(&entry, &error))?;
        self.egress.open(asked).map(Some).map_err(|error| match error {
            EgressError::Beyond(rule) => {
                let entry = rule.to_string();
                let remedy = format_args!(
                    "this worker does not allow it; remove it, or start workers with {FLAG} {entry}"
                );
                refused(&entry, &remedy)
            }
            EgressError::Listen(_) => PlaceError::Broken(error.to_string()),
        })
    }
}

#[async_trait]
impl Walls for Sandboxed {
    async fn place(&self, gateway: &Gateway, network: &[String]) -> Result<Box<dyn Place>, PlaceError> {
        let gate = self.gate(network)?;
        let made = self.host.create(self.spec(gateway.socket.clone(), gate.as_ref())).await;
        let sandbox = made.map_err(|error| PlaceError::Broken(error.to_string()))?;
        Ok(Box::new(SandboxedPlace { sandbox, gate, path: self.path.clone() }))
    }
}

struct SandboxedPlace {
    sandbox: LiveSandbox,
    /// Its way to other hosts, open as long as this value, and no longer than the sandbox.
    gate: Option<Gate>,
    path: String,
}

#[async_trait]
impl Place for SandboxedPlace {
    fn folder(&self) -> &str {
        FOLDER
    }

    fn gateway(&self) -> &str {
        GATEWAY
    }

    fn path(&self) -> &str {
        &self.path
    }

    async fn write(&self, files: &BTreeMap<String, String>) -> Result<(), PlaceError> {
        for (path, text) in files {
            if !is_inner_path(path) {
                return Err(PlaceError::Broken(format!("path={path:?} leads elsewhere")));
            }
            self.clear_way(path).await.map_err(unplaced)?;
            self.sandbox.write(&within(path), text.as_bytes()).await.map_err(unplaced)?;
        }
        Ok(())
    }

    async fn start(&self, program: Program) -> Result<Box<dyn Running>, PlaceError> {
        let named = program.argv.first().cloned().unwrap_or_default();
        let env: BTreeMap<String, String> = variables(self).into_iter().chain(program.env).collect();
        if !self.is_found(&named, env.get("PATH").map_or("", String::as_str)).await? {
            return Err(PlaceError::Start { program: named, reason: "there is no such program".to_owned() });
        }
        let exec = Exec { env, cwd: Some(FOLDER.to_owned()), timeout_ms: None, ..Exec::new(program.argv) };
        let exec = Exec { output_bytes: OUTPUT_BYTES, ..exec };
        let process = self.sandbox.spawn(exec).await.map_err(|error| match error {
            LiveError::Invalid { .. } => PlaceError::Start { program: named, reason: error.to_string() },
            // All that is its own was killed before; what remains are files.
            LiveError::Failed(reason) => PlaceError::InTheWay(reason),
            other => PlaceError::Broken(other.to_string()),
        })?;
        let _ = process.close_input().await;
        Ok(Box::new(SandboxedRunning { process, output: Written::default(), ended: None }))
    }

    async fn clear(&self) -> Result<(), PlaceError> {
        self.sandbox.kill_all().await.map_err(|error| PlaceError::Broken(error.to_string()))
    }

    async fn end(&self) {
        if let Some(gate) = &self.gate {
            gate.close();
        }
        self.sandbox.end().await;
    }
}

/// A path of the agent's folder, as seen from within.
fn within(path: &str) -> String {
    format!("{FOLDER}/{path}")
}

fn unplaced(error: LiveError) -> PlaceError {
    match error {
        LiveError::File(fault) => PlaceError::InTheWay(fault.to_string()),
        other => PlaceError::Broken(other.to_string()),
    }
}

impl SandboxedPlace {
    /// Removes what is where a file is to be, and links and files where its folders are to be.
    async fn clear_way(&self, path: &str) -> Result<(), LiveError> {
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        for end in ends {
            let at = within(&path[..end]);
            let Some(found) = self.sandbox.look(&at).await? else { return Ok(()) };
            if end == path.len() || found.kind != FileKind::Folder {
                return self.sandbox.remove(&at).await;
            }
        }
        Ok(())
    }

    async fn is_found(&self, program: &str, path: &str) -> Result<bool, PlaceError> {
        for place in places_of(program, FOLDER, path) {
            match self.sandbox.look(&place).await {
                Ok(Some(_)) => return Ok(true),
                // A folder that is closed, or none.
                Ok(None) | Err(LiveError::File(_)) => {}
                Err(error) => return Err(PlaceError::Broken(error.to_string())),
            }
        }
        Ok(false)
    }
}

struct SandboxedRunning {
    /// Killed with this value.
    process: Process,
    output: Written,
    ended: Option<End>,
}

impl SandboxedRunning {
    async fn end(&mut self) -> End {
        loop {
            if let Some(end) = self.ended {
                return end;
            }
            match self.process.next().await {
                Event::Out(bytes) => self.output.print(&bytes),
                Event::Err(bytes) => self.output.complain(&bytes),
                Event::Ended { end, .. } => self.ended = Some(end),
            }
        }
    }
}

#[async_trait]
impl Running for SandboxedRunning {
    async fn wait(&mut self) -> Result<Ended, PlaceError> {
        let code = match self.end().await {
            // A signal is told as a shell does.
            End::Exit(code) => Some(code).filter(|code| *code < SIGNALLED),
            End::Signal(_) => None,
            End::Broke => return Err(PlaceError::Broken("the sandbox has ended".to_owned())),
            limit => {
                self.output.complain(format!("\nkilled beyond its limit: {limit:?}").as_bytes());
                None
            }
        };
        Ok(self.output.ended(code))
    }

    async fn kill(&mut self) {
        // Where the sandbox has ended, so has the program.
        if self.ended.is_none() && self.process.kill().await.is_ok() {
            self.end().await;
        }
    }
}
