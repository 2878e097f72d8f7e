//! Arguments of every binary for its identity on the queue and the servers that it trusts.

use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser};
use millrace_schemas::role::inbox_prefix;

use crate::jetstream::{Credentials, JetStreamOptions, Tls};

/// Bytes of a file that holds a seed, at most.
const SEED_FILE_BYTES: u64 = 64 * 1024;

/// Environment variables of [`ConnectArgs`].
pub const CONNECT_ENV: [&str; 6] = [
    "MILLRACE_NATS_NKEY",
    "MILLRACE_NATS_CREDS",
    "MILLRACE_NATS_TLS_CA",
    "MILLRACE_NATS_TLS_CERT",
    "MILLRACE_NATS_TLS_KEY",
    "MILLRACE_NATS_INBOX",
];

/// Who we are to the nats-server. Secrets are in files and nowhere else; an empty path is none.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub struct ConnectArgs {
    /// File with the seed of our nkey, as `millrace init-auth` makes it
    #[arg(long, global = true, env = CONNECT_ENV[0], hide_env_values = true, value_name = "FILE", value_parser = path())]
    pub nats_nkey: Option<PathBuf>,
    /// Credentials file, as `nsc` makes it
    #[arg(long, global = true, env = CONNECT_ENV[1], hide_env_values = true, value_name = "FILE", value_parser = path())]
    pub nats_creds: Option<PathBuf>,
    /// PEM file of the authority that signed the server's certificate; asks for TLS
    #[arg(long, global = true, env = CONNECT_ENV[2], hide_env_values = true, value_name = "FILE", value_parser = path())]
    pub nats_tls_ca: Option<PathBuf>,
    /// PEM file of our own certificate, where the server asks for one
    #[arg(long, global = true, env = CONNECT_ENV[3], hide_env_values = true, value_name = "FILE", value_parser = path())]
    pub nats_tls_cert: Option<PathBuf>,
    /// PEM file of our own certificate's key
    #[arg(long, global = true, env = CONNECT_ENV[4], hide_env_values = true, value_name = "FILE", value_parser = path())]
    pub nats_tls_key: Option<PathBuf>,
    /// First token of the subjects of our replies. Default: what the nkey's file says
    #[arg(long, global = true, env = CONNECT_ENV[5], hide_env_values = true, value_name = "TOKEN")]
    pub nats_inbox: Option<String>,
}

/// Why the arguments are none to connect with. Never holds what a file holds.
#[derive(Debug, thiserror::Error)]
pub enum ConnectArgsError {
    /// The file cannot be read.
    #[error("failed to read --nats-nkey path={path}: {reason}")]
    Unreadable {
        /// Where.
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
    /// The file holds no seed.
    #[error(
        "failed to read --nats-nkey path={0}: no line is the seed of a user's nkey (SU…); `millrace init-auth` makes \
         such files"
    )]
    NoSeed(PathBuf),
    /// Two ways to say who we are.
    #[error("--nats-nkey and --nats-creds both say who we are; give one")]
    Both,
    /// Half of a certificate.
    #[error("--nats-tls-cert and --nats-tls-key go together; give both or none")]
    HalfACertificate,
    /// Not a token of a subject.
    #[error("--nats-inbox value={0:?} is not one token of a subject: letters, digits, '-' and '_'")]
    Inbox(String),
}

impl ConnectArgs {
    /// The options that these arguments mean. Reads the seed.
    ///
    /// # Errors
    /// A file cannot be read or holds no seed, or the arguments contradict each other.
    pub fn options(&self) -> Result<JetStreamOptions, ConnectArgsError> {
        let mut options = JetStreamOptions { tls: self.tls()?, ..JetStreamOptions::default() };
        match (given(self.nats_nkey.as_ref()), given(self.nats_creds.as_ref())) {
            (Some(_), Some(_)) => return Err(ConnectArgsError::Both),
            (Some(path), None) => {
                let key = Key::read(path)?;
                options.credentials = Credentials::NKey(key.seed);
                options.inbox_prefix = key.user.as_deref().map(inbox_prefix);
                options.user = key.user;
            }
            (None, Some(path)) => options.credentials = Credentials::File(path.clone()),
            (None, None) => {}
        }
        if let Some(inbox) = self.nats_inbox.as_ref().filter(|inbox| !inbox.is_empty()) {
            if !is_token(inbox) {
                return Err(ConnectArgsError::Inbox(inbox.clone()));
            }
            options.inbox_prefix = Some(inbox.clone());
        }
        Ok(options)
    }

    fn tls(&self) -> Result<Option<Tls>, ConnectArgsError> {
        let authority = given(self.nats_tls_ca.as_ref()).cloned();
        let certificate = match (given(self.nats_tls_cert.as_ref()), given(self.nats_tls_key.as_ref())) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => return Err(ConnectArgsError::HalfACertificate),
        };
        Ok((authority.is_some() || certificate.is_some()).then_some(Tls { authority, certificate }))
    }

    /// The arguments again, for a process that is started to do the same.
    #[must_use]
    pub fn to_arguments(&self) -> Vec<String> {
        let path = |path: &Option<PathBuf>| Some(given(path.as_ref())?.to_string_lossy().into_owned());
        let all = [
            ("--nats-nkey", path(&self.nats_nkey)),
            ("--nats-creds", path(&self.nats_creds)),
            ("--nats-tls-ca", path(&self.nats_tls_ca)),
            ("--nats-tls-cert", path(&self.nats_tls_cert)),
            ("--nats-tls-key", path(&self.nats_tls_key)),
            ("--nats-inbox", self.nats_inbox.clone().filter(|inbox| !inbox.is_empty())),
        ];
        all.into_iter().filter_map(|(name, value)| Some([name.to_owned(), value?])).flatten().collect()
    }
}

/// A path that may be empty, as a variable that was set to nothing is.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

fn given(path: Option<&PathBuf>) -> Option<&PathBuf> {
    path.filter(|path| !path.as_os_str().is_empty())
}

fn is_token(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

/// The comment in a seed file that names its user.
const USER: &str = "# user=";

/// What a file of a seed holds.
struct Key {
    seed: String,
    user: Option<String>,
}

impl Key {
    fn read(path: &Path) -> Result<Self, ConnectArgsError> {
        let unreadable = |reason: String| ConnectArgsError::Unreadable { path: path.to_owned(), reason };
        let size = std::fs::metadata(path).map_err(|e| unreadable(e.to_string()))?.len();
        if size > SEED_FILE_BYTES {
            return Err(unreadable(format!("it has bytes={size}; a seed has 58")));
        }
        let text = std::fs::read_to_string(path).map_err(|e| unreadable(e.to_string()))?;
        let lines = || text.lines().map(str::trim);
        let seed = lines().find(|line| line.starts_with("SU"));
        // The error is not shown: it may hold what was read.
        let seed = seed.filter(|seed| nkeys::KeyPair::from_seed(seed).is_ok());
        let user = lines().find_map(|line| line.strip_prefix(USER)).filter(|user| is_token(user));
        match seed {
            Some(seed) => Ok(Self { seed: seed.to_owned(), user: user.map(str::to_owned) }),
            None => Err(ConnectArgsError::NoSeed(path.to_owned())),
        }
    }
}

/// The public key of the user whose seed is in a file.
///
/// # Errors
/// The file cannot be read or holds no seed.
pub fn public_key(path: &Path) -> Result<String, ConnectArgsError> {
    let key = Key::read(path)?;
    let pair = nkeys::KeyPair::from_seed(&key.seed).map_err(|_| ConnectArgsError::NoSeed(path.to_owned()))?;
    Ok(pair.public_key())
}

/// The seed and public key of a new user.
#[must_use]
pub fn new_user_key(user: &str) -> (String, String) {
    let pair = nkeys::KeyPair::new_user();
    let seed = pair.seed().expect("a new pair has a seed");
    (format!("{USER}{user}\n{seed}\n"), pair.public_key())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_key(text: &str) -> (tempfile::TempDir, ConnectArgs) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key.nk");
        std::fs::write(&path, text).unwrap();
        (folder, ConnectArgs { nats_nkey: Some(path), ..ConnectArgs::default() })
    }

    #[test]
    fn a_key_says_whose_it_is_and_where_replies_go() {
        let (_folder, args) = with_key(&new_user_key("reward").0);
        let options = args.options().unwrap();
        assert_eq!(options.user.as_deref(), Some("reward"));
        assert_eq!(options.inbox_prefix.as_deref(), Some("_INBOX_reward"));
    }

    #[test]
    fn a_seed_is_in_no_error_and_no_debug_output() {
        let (text, _) = new_user_key("reward");
        let seed = text.lines().last().unwrap().to_owned();
        let (_folder, args) = with_key(&text);
        let shown = format!("{args:?} {:?}", args.options().unwrap());
        assert!(!shown.contains(&seed), "{shown}");
        // One letter is missing: no seed, but most of one.
        let (_folder, args) = with_key(&seed[..seed.len() - 1]);
        let error = args.options().unwrap_err();
        assert!(!format!("{error} {error:?}").contains(&seed[2..20]), "{error}");
        assert!(error.to_string().contains("init-auth"));
    }

    #[test]
    fn contradictions_are_refused_and_empty_paths_are_none() {
        let empty = Some(PathBuf::new());
        let nothing = ConnectArgs { nats_nkey: empty.clone(), nats_tls_ca: empty, ..Default::default() };
        assert!(nothing.options().unwrap().tls.is_none());
        let half = ConnectArgs { nats_tls_cert: Some("c.pem".into()), ..Default::default() };
        assert!(matches!(half.options(), Err(ConnectArgsError::HalfACertificate)));
        let inbox = ConnectArgs { nats_inbox: Some("a.b".into()), ..Default::default() };
        assert!(matches!(inbox.options(), Err(ConnectArgsError::Inbox(_))));
        let both =
            ConnectArgs { nats_nkey: Some("a".into()), nats_creds: Some("b".into()), ..Default::default() };
        assert!(matches!(both.options(), Err(ConnectArgsError::Both)));
        assert_eq!(both.to_arguments(), ["--nats-nkey", "a", "--nats-creds", "b"]);
    }
}
