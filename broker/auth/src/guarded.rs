//! What a guarded nats-server is made of: keys for the roles, certificates, and its configuration, in which
//! each role may do its own work only.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use millrace_schemas::Stage;
use millrace_schemas::role::{Allowance, Rights, Role};

use millrace_queue::args::{ConnectArgsError, new_user_key, public_key};

mod certificates;
mod config;
mod accounts;

/// Only the owner may read it.
const SECRET: u32 = 0o600;
/// Anyone may read it.
const PUBLIC: u32 = 0o644;

/// What is to be made.
#[derive(Debug, Clone)]
pub struct Guarded {
    /// Names and addresses of the server, besides those of the machine itself.
    pub hosts: Vec<String>,
    /// Stages that one worker serves: each set gets a user with the rights of all.
    pub together: Vec<Vec<Stage>>,
    /// Where the server listens, `address:port`.
    pub listen: String,
    /// Where the files will be on the server's machine.
    pub place: PathBuf,
    /// The server's `sync_interval`: a time, or `always`.
    pub sync: String,
    /// Now, in milliseconds since 1970: certificates count from here.
    pub unix_ms: u64,
}

/// A file, made and not yet written.
#[derive(Clone)]
pub struct AuthFile {
    /// Its path in the folder.
    pub name: String,
    /// Who may read it.
    mode: u32,
    content: String,
}

/// Why there are no files.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// A host is no name or address, or the library fails.
    #[error("failed to make a certificate for hosts={hosts:?}: {reason}; is each a name or an address?")]
    Certificate {
        /// The hosts.
        hosts: Vec<String>,
        /// What went wrong.
        reason: String,
    },
    /// A configuration cannot contain the value.
    #[error(
        "{field} value={value:?} cannot stand in a configuration: it has a quote, '\\', '@' or a new line"
    )]
    Config {
        /// Which.
        field: &'static str,
        /// What it is.
        value: String,
    },
    /// Stages without workers, or none at all.
    #[error("stages value={0:?}: only stages with workers can be combined, and at least one")]
    Stages(Vec<Stage>),
    /// Files of an earlier call.
    #[error("path={0} exists already; --again replaces all of it, and the keys made before become invalid")]
    Standing(PathBuf),
    /// An existing key cannot be read.
    #[error(transparent)]
    Key(ConnectArgsError),
    /// The folder, or a file in it.
    #[error("failed to write path={path}: {source}")]
    Write {
        /// Where.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
}

impl Guarded {
    /// Makes all files; the keys are new each time.
    ///
    /// # Errors
    /// What is asked for makes no sense.
    pub fn make(&self) -> Result<Vec<AuthFile>, AuthError> {
        let certificates = certificates::make(&self.hosts, self.unix_ms)?;
        let file = |name: &str, mode, content| AuthFile { name: name.to_owned(), mode, content };
        let mut files = vec![
            file("tls/ca.pem", PUBLIC, certificates.authority),
            file("tls/ca.key", SECRET, certificates.authority_key),
            file("tls/server.pem", PUBLIC, certificates.server),
            file("tls/server.key", SECRET, certificates.server_key),
        ];
        files.extend(self.make_users(|_| Ok(None))?);
        Ok(files)
    }

    /// Rewrites the configuration for the keys and certificates that exist in `folder`, for example
    /// when a new version of Millrace adds rights. Users that do not exist yet get keys.
    ///
    /// # Errors
    /// The request makes no sense, or an existing key cannot be read.
    pub fn update(&self, folder: &Path) -> Result<Vec<AuthFile>, AuthError> {
        self.make_users(|name| {
            let path = folder.join(name);
            path.exists().then(|| public_key(&path).map_err(AuthError::Key)).transpose()
        })
    }

    /// The configuration, and keys for the users of whose key `standing` does not know the public half.
    fn make_users(
        &self,
        standing: impl Fn(&str) -> Result<Option<String>, AuthError>,
    ) -> Result<Vec<AuthFile>, AuthError> {
        let file = |name: &str, mode, content| AuthFile { name: name.to_owned(), mode, content };
        let (mut files, mut users) = (Vec::new(), Vec::new());
        for (name, roles) in self.users()? {
            let key = format!("keys/{name}.nk");
            let public = match standing(&key)? {
                Some(public) => public,
                None => {
                    let (seed, public) = new_user_key(&name);
                    files.push(file(&key, SECRET, seed));
                    public
                }
            };
            let rights = Rights::of(&name, &roles);
            users.push(config::User { name, public, rights, allowance: Allowance::of(&roles) });
        }
        files.push(file("nats-server.conf", PUBLIC, config::render(self, &users)?));
        Ok(files)
    }

    /// The users by name, with their roles.
    fn users(&self) -> Result<BTreeMap<String, Vec<Role>>, AuthError> {
        let alone = Role::ALL.into_iter().map(|role| (role.name().to_owned(), vec![role]));
        let mut users: BTreeMap<_, _> = alone.collect();
        for stages in &self.together {
            if stages.is_empty() || stages.contains(&Stage::Submit) {
                return Err(AuthError::Stages(stages.clone()));
            }
            let name = stages.iter().map(|stage| stage.name()).collect::<Vec<_>>().join("-");
            users.insert(name, stages.iter().copied().map(Role::Worker).collect());
        }
        Ok(users)
    }
}

/// Writes the files into `folder`, with secrets readable by their owner alone. Existing files are
/// kept, unless `again`.
///
/// # Errors
/// A file exists already, or cannot be written.
pub fn write(folder: &Path, files: &[AuthFile], again: bool) -> Result<(), AuthError> {
    let standing = files.iter().map(|file| folder.join(&file.name)).find(|path| path.exists());
    if let Some(standing) = standing.filter(|_| !again) {
        return Err(AuthError::Standing(standing));
    }
    for AuthFile { name, mode, content } in files {
        let path = folder.join(name);
        write_one(&path, *mode, content).map_err(|source| AuthError::Write { path, source })?;
    }
    Ok(())
}

fn write_one(path: &Path, mode: u32, content: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // The mode applies to a new file; an existing file may have another mode.
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(content.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn guarded() -> Guarded {
        Guarded {
            hosts: vec!["nats.example.com".into()],
            together: vec![vec![Stage::EnvStep, Stage::Reward]],
            listen: "127.0.0.1:4222".into(),
            place: "/etc/millrace".into(),
            sync: "always".into(),
            unix_ms: 1_700_000_000_000,
        }
    }

    #[test]
    fn secrets_are_their_owners_alone_and_stand_until_told_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &guarded().make().unwrap(), false).unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        let before = read("keys/env_step-reward.nk");
        for name in ["keys/coordinator.nk", "keys/env_step-reward.nk", "tls/ca.key", "tls/server.key"] {
            let mode = fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        let config = read("nats-server.conf");
        assert!(config.contains("cert_file: \"/etc/millrace/tls/server.pem\""), "{config}");
        let seed = before.lines().last().unwrap();
        assert!(!config.contains('@') && !config.contains(seed), "{config}");
        let error = write(folder.path(), &guarded().make().unwrap(), false).unwrap_err();
        assert!(matches!(&error, AuthError::Standing(_)) && error.to_string().contains("--again"), "{error}");
        assert_eq!(read("keys/env_step-reward.nk"), before);
        write(folder.path(), &guarded().make().unwrap(), true).unwrap();
        assert_ne!(read("keys/env_step-reward.nk"), before);
    }

    #[test]
    fn an_update_keeps_the_keys_that_stand_and_makes_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        let before = Guarded { together: vec![], ..guarded() };
        write(folder.path(), &before.make().unwrap(), false).unwrap();
        let (key, authority) = (read("keys/generate.nk"), read("tls/ca.pem"));
        let public = public_key(&folder.path().join("keys/generate.nk")).unwrap();
        write(folder.path(), &guarded().update(folder.path()).unwrap(), true).unwrap();
        assert_eq!((read("keys/generate.nk"), read("tls/ca.pem")), (key, authority));
        let added = public_key(&folder.path().join("keys/env_step-reward.nk")).unwrap();
        let config = read("nats-server.conf");
        assert!(config.contains(&public) && config.contains(&added), "{config}");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refused = |guarded: Guarded| guarded.make().err().map(|e| e.to_string()).unwrap_or_default();
        assert!(
            refused(Guarded { together: vec![vec![Stage::Submit]], ..guarded() }).contains("stages value")
        );
        assert!(refused(Guarded { listen: "\"x\"".into(), ..guarded() }).contains("--listen"));
        assert!(refused(Guarded { hosts: vec!["ü".into()], ..guarded() }).contains("hosts="));
    }
}
