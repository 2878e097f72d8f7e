//! Contexts of the `nats` command, as it stores them in `~/.config/nats/context/NAME.json`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use millrace_queue::ConnectArgs;
use serde_json::{Map, Value};

/// One context.
#[derive(Debug)]
pub(super) struct NatsContext {
    name: String,
    settings: Map<String, Value>,
}

/// Settings that are used, or that have no effect here.
const KNOWN: [&str; 12] = [
    "name",
    "description",
    "color_scheme",
    "url",
    "user",
    "password",
    "creds",
    "nkey",
    "ca",
    "cert",
    "key",
    "inbox_prefix",
];

impl NatsContext {
    /// Reads a context of this user.
    ///
    /// # Errors
    /// No context has this name, it cannot be read, or it has a setting that Millrace does not
    /// support.
    pub(super) fn load(name: &str) -> Result<Self> {
        let home = variable("HOME").map(PathBuf::from);
        let config = variable("XDG_CONFIG_HOME").map(PathBuf::from);
        let config = config.or_else(|| home.map(|home| home.join(".config")));
        let config = config.context("failed to find the contexts of `nats`: set HOME or XDG_CONFIG_HOME")?;
        Self::read(&config.join("nats/context"), name)
    }

    fn read(folder: &Path, name: &str) -> Result<Self> {
        ensure!(
            !name.contains(['/', '\\']) && !name.contains(".."),
            "--context {name:?} is not a context's name; `nats context ls` lists them"
        );
        let path = folder.join(format!("{name}.json"));
        let text = std::fs::read(&path).with_context(|| {
            format!(
                "failed to read --context {name} path={}; `nats context ls` lists contexts",
                path.display()
            )
        })?;
        // No error quotes the file: it may hold a password.
        let Ok(Value::Object(settings)) = serde_json::from_slice(&text) else {
            bail!("failed to read --context {name} path={}: it is not a JSON object", path.display());
        };
        for (field, value) in &settings {
            let empty = match value {
                Value::Null | Value::Bool(false) => true,
                Value::String(text) => text.is_empty(),
                Value::Array(items) => items.is_empty(),
                _ => false,
            };
            ensure!(
                empty || KNOWN.contains(&field.as_str()),
                "--context {name}: {field} is set, which Millrace does not support; use a context with creds, nkey, \
                 or user and password"
            );
        }
        Ok(Self { name: name.to_owned(), settings })
    }

    fn text(&self, field: &str) -> Option<&str> {
        self.settings.get(field).and_then(Value::as_str).filter(|text| !text.is_empty())
    }

    /// The servers' URL, with user and password if the context has them.
    pub(super) fn url(&self) -> Result<String> {
        let name = &self.name;
        let url =
            self.text("url").with_context(|| format!("--context {name}: url is empty; set a server"))?;
        let url = if url.contains("://") { url.to_owned() } else { format!("nats://{url}") };
        match (self.text("user"), self.text("password")) {
            (None, None) => Ok(url),
            (Some(user), Some(password)) => {
                let (scheme, rest) = url.split_once("://").unwrap_or(("nats", &url));
                Ok(format!("{scheme}://{user}:{password}@{rest}"))
            }
            (Some(_), None) => bail!("--context {name}: user is set and password is not"),
            (None, Some(_)) => bail!("--context {name}: password is set and user is not"),
        }
    }

    /// Credentials of the context. Those on the command line take precedence.
    pub(super) fn who(&self, given: &ConnectArgs) -> ConnectArgs {
        let file = |field| self.text(field).map(expanded);
        ConnectArgs {
            nats_nkey: given.nats_nkey.clone().or_else(|| file("nkey")),
            nats_creds: given.nats_creds.clone().or_else(|| file("creds")),
            nats_tls_ca: given.nats_tls_ca.clone().or_else(|| file("ca")),
            nats_tls_cert: given.nats_tls_cert.clone().or_else(|| file("cert")),
            nats_tls_key: given.nats_tls_key.clone().or_else(|| file("key")),
            nats_inbox: given.nats_inbox.clone().or_else(|| self.text("inbox_prefix").map(str::to_owned)),
        }
    }
}

/// A path in which `~` is the user's home, as the `nats` command reads it.
fn expanded(path: &str) -> PathBuf {
    match (path.strip_prefix('~'), variable("HOME")) {
        (Some(rest), Some(home)) => PathBuf::from(format!("{home}{rest}")),
        _ => PathBuf::from(path),
    }
}

/// An environment variable; an empty one counts as none.
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<NatsContext> {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("fleet.json"), text).expect("a file");
        NatsContext::read(folder.path(), "fleet")
    }

    #[test]
    fn a_context_gives_server_user_and_trust() {
        let context = read(
            r#"{"description": "d", "url": "a:4222,b:4222", "user": "u", "password": "p@w", "ca": "/ca.pem",
                "nkey": "/n.nk", "token": "", "tls_first": false, "windows_ca_certs_match": null,
                "inbox_prefix": "_INBOX_u"}"#,
        )
        .expect("a context");
        assert_eq!(context.url().expect("a URL"), "nats://u:p@w@a:4222,b:4222");
        let who = context.who(&ConnectArgs { nats_nkey: Some("mine.nk".into()), ..ConnectArgs::default() });
        assert_eq!((who.nats_nkey, who.nats_tls_ca), (Some("mine.nk".into()), Some("/ca.pem".into())));
        assert_eq!((who.nats_inbox.as_deref(), who.nats_creds), (Some("_INBOX_u"), None));
    }

    #[test]
    fn what_cannot_be_done_is_refused_and_no_secret_is_shown() {
        for (text, word) in [
            (r#"{"url": "a", "token": "SECRET"}"#, "token"),
            (r#"{"url": "a", "tls_first": true}"#, "tls_first"),
            (r#"{"url": "a", "user_seed": "SECRET"}"#, "user_seed"),
            (r#"["SECRET"]"#, "JSON object"),
            ("SECRET", "JSON object"),
        ] {
            let error = format!("{:#}", read(text).expect_err(text));
            assert!(error.contains(word) && !error.contains("SECRET"), "{error}");
        }
        let lone = read(r#"{"url": "a", "password": "SECRET"}"#).expect("a context");
        let error = format!("{:#}", lone.url().expect_err("a password without a user"));
        assert!(error.contains("user") && !error.contains("SECRET"), "{error}");
        assert!(read(r#"{"url": ""}"#).and_then(|context| context.url()).is_err());
    }

    #[test]
    fn a_name_leads_out_of_no_folder() {
        for name in ["../fleet", "a/b", "..", "a\\b"] {
            let error = NatsContext::read(Path::new("/nowhere"), name).expect_err(name).to_string();
            assert!(error.contains("not a context's name"), "{error}");
        }
    }
}
