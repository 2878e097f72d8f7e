//! Members as processes, lost in the middle of a collective: killed, or stopped without an end.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use millrace_policy::gang::{GangError, RankAssignment, Rendezvous};
use millrace_torch::gang::Group;
use tch::{Device, Kind, Tensor};
use tokio_util::sync::CancellationToken;

/// Environment variable that makes the test binary a member: rank, world, timeout in milliseconds,
/// folder.
const MEMBER: &str = "MILLRACE_TEST_GANG_MEMBER";
/// The longest wait for a line of a member.
const PATIENCE: Duration = Duration::from_secs(60);

/// Keys as files of a folder.
#[derive(Debug)]
struct Folder(PathBuf);

impl Rendezvous for Folder {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), GangError> {
        let path = self.0.join(key.replace('/', "+"));
        let part = path.with_extension(format!("part-{}", std::process::id()));
        std::fs::write(&part, value).unwrap();
        std::fs::rename(&part, &path).unwrap();
        Ok(())
    }

    fn get(&self, key: &str) -> Result<Option<Vec<u8>>, GangError> {
        Ok(std::fs::read(self.0.join(key.replace('/', "+"))).ok())
    }
}

/// Reduces with the others until one is lost, then once more with the remaining ones.
#[test]
fn a_member_in_a_process_of_its_own() {
    let Ok(words) = std::env::var(MEMBER) else { return };
    let mut words = words.splitn(4, ',');
    let mut number = || words.next().unwrap().parse::<u32>().unwrap();
    let (rank, world, timeout) = (number(), number(), Duration::from_millis(u64::from(number())));
    let rendezvous: Arc<dyn Rendezvous> = Arc::new(Folder(words.next().unwrap().into()));
    let assignment = |gang: &str, world| RankAssignment {
        gang: gang.to_owned(),
        rank,
        world,
        timeout,
        cancel: CancellationToken::new(),
        rendezvous: rendezvous.clone(),
    };
    let group = Group::form(&assignment("first", world), Device::Cpu).unwrap();
    let numbers = Tensor::ones([1 << 16], (Kind::Float, Device::Cpu));
    let mut round = 0;
    let error = loop {
        match group.all_reduce(&numbers.copy()) {
            Ok(()) => round += 1,
            Err(error) => break error,
        }
        if round == 5 {
            println!("\nat it");
        }
    };
    println!("\nvoid {error}");
    group.leave();
    let group = Group::form(&assignment("second", world - 1), Device::Cpu).unwrap();
    let sum = Tensor::from_slice(&[1.0]);
    group.all_reduce(&sum).unwrap();
    println!("\nagain {}", f64::try_from(sum.get(0)).unwrap());
}

/// A member, and the lines that it prints.
struct Member {
    child: Child,
    lines: Receiver<String>,
}

impl Member {
    fn start(rank: u32, world: u32, timeout: Duration, folder: &Path) -> Self {
        let words = format!("{rank},{world},{},{}", timeout.as_millis(), folder.display());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "gang::processes::a_member_in_a_process_of_its_own", "--nocapture"])
            .env(MEMBER, words)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || out.lines().map_while(Result::ok).all(|line| send.send(line).is_ok()));
        Self { child, lines }
    }

    /// Waits for a line that begins with `word`.
    fn next_line(&self, word: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).unwrap_or_else(|_| panic!("never said {word:?}"));
            if line.starts_with(word) {
                return line;
            }
        }
    }

    fn signal(&self, signal: &str) {
        assert!(
            Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success()
        );
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A gang of three loses its last member by `signal`; the others notice within `within` and
/// continue as two.
fn loses(signal: &str, timeout: Duration, within: Duration) {
    let folder = tempfile::tempdir().unwrap();
    let members: Vec<Member> = (0..3).map(|rank| Member::start(rank, 3, timeout, folder.path())).collect();
    members.iter().for_each(|member| drop(member.next_line("at it")));
    members[2].signal(signal);
    let since = Instant::now();
    for member in &members[..2] {
        let said = member.next_line("void");
        assert!(since.elapsed() < within, "{signal}: {said} after {:?}", since.elapsed());
    }
    for member in &members[..2] {
        assert_eq!(member.next_line("again"), "again 2", "the thread works afterwards");
    }
}

#[test]
fn a_member_that_is_killed_is_noticed_within_two_seconds() {
    loses("-KILL", PATIENCE, Duration::from_secs(2));
}

#[test]
fn a_member_that_hangs_is_noticed_within_the_gangs_timeout() {
    let timeout = Duration::from_millis(1500);
    loses("-STOP", timeout, timeout + Duration::from_millis(700));
}
