//! What the server forbade. It says so apart from what was asked, by subject, and answers nothing: whoever
//! waits for an answer on that subject must be told, or would wait until time is up.

use tokio::sync::broadcast;

/// Refusals that may wait to be heard; who hears them late waits until time is up.
const HEARD: usize = 256;

/// A thing that was forbidden.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Violation {
    /// Publishing, rather than subscribing.
    pub(super) publish: bool,
    /// On which subject.
    pub(super) subject: String,
}

/// Tells those who wait.
#[derive(Debug, Clone)]
pub(super) struct Violations {
    heard: broadcast::Sender<Violation>,
    /// Whom the server knows us as.
    pub(super) user: String,
}

impl Violations {
    pub(super) fn new(user: Option<&str>) -> Self {
        Self { heard: broadcast::Sender::new(HEARD), user: user.unwrap_or("unnamed").to_owned() }
    }

    pub(super) fn listen(&self) -> broadcast::Receiver<Violation> {
        self.heard.subscribe()
    }

    /// Takes a complaint of the server. Says whether it was one of these.
    pub(super) fn hear(&self, words: &str) -> bool {
        let Some(violation) = read(words) else { return false };
        let Violation { publish, subject } = &violation;
        let user = &self.user;
        let what = if *publish { "publish" } else { "subscribe" };
        tracing::error!(
            user,
            subject,
            "the server forbids to {what}: this user has no right to; give the process the key of its role"
        );
        // Perhaps nobody waits.
        let _ = self.heard.send(violation);
        true
    }

    /// Why an answer will not come.
    pub(super) fn reason(&self, subject: &str) -> String {
        format!("permissions violation: user={} may not use subject={subject}", self.user)
    }

    /// Waits until publishing on `subject` is forbidden.
    pub(super) async fn forbidden(heard: &mut broadcast::Receiver<Violation>, subject: &str) {
        loop {
            match heard.recv().await {
                Ok(violation) if violation.publish && violation.subject == subject => return,
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

/// Reads `Permissions Violation for Publish to "subject"`, with whatever stands around it.
fn read(words: &str) -> Option<Violation> {
    let (before, rest) = words.split_once("ermissions Violation for ")?;
    let (kind, rest) = rest.split_once(" to ")?;
    let subject = rest.split('"').nth(1)?;
    let publish = kind.eq_ignore_ascii_case("publish");
    (before.len() < 40).then(|| Violation { publish, subject: subject.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_read() {
        let publish = Violation { publish: true, subject: "mr.log.run.Cancelled".into() };
        assert_eq!(
            read(r#"nats: Permissions Violation for Publish to "mr.log.run.Cancelled""#),
            Some(publish)
        );
        let subscribe = Violation { publish: false, subject: "_INBOX_x.>".into() };
        let words = r#"Permissions Violation for Subscription to "_INBOX_x.>" using queue "q""#;
        assert_eq!(read(words), Some(subscribe));
        assert_eq!(read("Slow Consumer"), None);
    }
}
