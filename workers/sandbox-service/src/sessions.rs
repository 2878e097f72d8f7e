//! The sessions of one sandbox, by name, with a bound on how many there are.
//!
//! Clients leave sessions open: ROCK's makes one for each `arun` without a session and closes none. So
//! where a new one needs the room, one that is of no more use to a process goes: it has run a command,
//! runs none, and left no process that still lives.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_sandbox::live::{Exec, LiveError, LiveSandbox};

use crate::session::{Session, Shell};

/// Sessions of a sandbox at most.
const SESSIONS: usize = 64;
/// How ROCK's client begins the names of sessions that it never uses again.
const ONE_USE: &str = "bash-";
/// Writes number, parent and state of each process of the sandbox, by bash alone: an image may have
/// nothing else.
const PROCESSES: &str = r#"
for file in /proc/[0-9]*/status; do
    while read -r key value _; do
        case $key in
            State:) state=$value ;;
            Pid:) pid=$value ;;
            PPid:) echo "$pid $value $state"; break ;;
        esac
    done < "$file"
done 2> /dev/null
"#;
/// Milliseconds that this may take.
const PROCESSES_MS: u64 = 10_000;

/// The sessions of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    by_name: HashMap<String, One>,
    uses: u64,
}

#[derive(Debug)]
struct One {
    session: Arc<Session>,
    /// When it was last asked for: a larger number is later.
    used: u64,
}

/// Why a session is not opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("session {0} already exists")]
    Exists(String),
    #[error(
        "the sandbox has 64 sessions, and each runs something, left something running or has run nothing yet; \
         close one"
    )]
    Full,
    #[error("{0}")]
    Sandbox(#[from] LiveError),
}

impl Sessions {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session of this name, to use it.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Session>> {
        let mut table = self.table();
        table.uses += 1;
        let used = table.uses;
        let one = table.by_name.get_mut(name)?;
        one.used = used;
        Some(Arc::clone(&one.session))
    }

    /// Starts a session in place of none, or of one that has ended.
    pub(crate) async fn open(&self, live: &LiveSandbox, name: &str, shell: Exec) -> Result<(), OpenError> {
        self.make_room(live, name).await?;
        let session = Arc::new(Session::start(live, shell).await?);
        loop {
            {
                let mut table = self.table();
                // Somebody else may have been faster.
                if table.has_room(name)? {
                    table.uses += 1;
                    let used = table.uses;
                    table.by_name.insert(name.to_owned(), One { session, used });
                    return Ok(());
                }
            }
            self.make_room(live, name).await?;
        }
    }

    /// Ends a session, and all that runs in it. Returns whether there was one.
    pub(crate) fn close(&self, name: &str) -> bool {
        self.table().by_name.remove(name).is_some()
    }

    /// Ends all.
    pub(crate) fn close_all(&self) {
        self.table().by_name.clear();
    }

    /// Closes a session that is of no more use, where there is no room for another.
    async fn make_room(&self, live: &LiveSandbox, name: &str) -> Result<(), OpenError> {
        let unused = {
            let mut table = self.table();
            if table.has_room(name)? {
                return Ok(());
            }
            table.by_name.retain(|_, one| one.session.is_alive());
            if table.has_room(name)? {
                return Ok(());
            }
            table.unused()
        };
        if unused.is_empty() {
            return Err(OpenError::Full);
        }
        let exec = Exec::new(["/bin/bash", "--norc", "--noprofile", "-c", PROCESSES]);
        let listed = live.exec(exec.timeout_ms(PROCESSES_MS), b"").await?;
        let processes = Processes::read(&String::from_utf8_lossy(&listed.stdout));
        let mut table = self.table();
        if table.has_room(name)? {
            return Ok(());
        }
        // One that was used meanwhile stays.
        let goes = |(name, used, shell): &&(String, u64, Shell)| {
            let one = table.by_name.get(name);
            one.is_some_and(|one| one.used == *used && one.is_unused()) && processes.is_alone(*shell)
        };
        let (name, ..) = unused.iter().find(goes).ok_or(OpenError::Full)?;
        tracing::debug!(session = name, "a session makes room for another");
        table.by_name.remove(name);
        Ok(())
    }
}

impl Table {
    /// Whether there may be another of this name.
    fn has_room(&self, name: &str) -> Result<bool, OpenError> {
        match self.by_name.get(name) {
            Some(one) if one.session.is_alive() => Err(OpenError::Exists(name.to_owned())),
            Some(_) => Ok(true),
            None => Ok(self.by_name.len() < SESSIONS),
        }
    }

    /// Those that ran a command and run none, with when each was used: first those that their client
    /// never uses again, and of these the one that was unused longest.
    fn unused(&self) -> Vec<(String, u64, Shell)> {
        let unused = self.by_name.iter().filter(|(_, one)| one.is_unused());
        let mut unused: Vec<_> =
            unused.filter_map(|(name, one)| Some((name.clone(), one.used, one.session.shell()?))).collect();
        unused.sort_by_key(|(name, used, _)| (!name.starts_with(ONE_USE), *used));
        unused
    }
}

impl One {
    /// Whether no request has it and nothing runs in it.
    fn is_unused(&self) -> bool {
        Arc::strong_count(&self.session) == 1 && self.session.is_idle()
    }
}

/// The processes of a sandbox that live, each with its parent.
#[derive(Debug)]
struct Processes(Vec<Shell>);

impl Processes {
    /// What [`PROCESSES`] wrote.
    fn read(listed: &str) -> Self {
        let process = |line: &str| {
            let mut words = line.split(' ');
            let mut number = || words.next()?.parse().ok();
            let (pid, parent) = (number()?, number()?);
            // One that has ended waits for its parent to see it.
            words.next().filter(|state| !["Z", "X"].contains(state)).map(|_| Shell { pid, parent })
        };
        Self(listed.lines().filter_map(process).collect())
    }

    /// Whether this shell is there and nothing that it started. What its children leave when they end
    /// comes to its own parent, which has no other children.
    fn is_alone(&self, shell: Shell) -> bool {
        let is_its = |one: &Shell| *one != shell && [shell.pid, shell.parent].contains(&one.parent);
        self.0.contains(&shell) && !self.0.iter().any(is_its)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_is_alone_unless_something_lives_that_came_of_it() {
        let shell = Shell { pid: 5, parent: 4 };
        let alone = |others: &str| Processes::read(&format!("4 1 S\n5 4 S\n{others}")).is_alone(shell);
        assert!(alone("") && alone("6 1 S\n7 6 S\n"));
        assert!(alone("6 5 Z\n7 4 X\n"), "what has ended is left nowhere");
        assert!(!alone("6 5 S\n") && !alone("6 4 D\n"));
        assert!(!Processes::read("4 1 S\n").is_alone(shell) && !Processes::read("").is_alone(shell));
    }
}
