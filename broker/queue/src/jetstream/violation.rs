//! Permission errors of the server. It reports them by subject, apart from the request, and sends
//! no reply. So they are passed on to the requests that wait for a reply on that subject, which
//! would otherwise wait for their timeout.

use tokio::sync::broadcast;

/// Permission errors that may wait for a reader; a reader that lags further waits for its timeout.
const HEARD: usize = 256;

/// A permission error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Violation {
    /// The operation was a publish, not a subscribe.
    pub(super) publish: bool,
    /// The forbidden subject.
    pub(super) subject: String,
}

/// Passes permission errors to the waiting requests.
#[derive(Debug, Clone)]
pub(super) struct Violations {
    heard: broadcast::Sender<Violation>,
    /// The user name on the server.
    pub(super) user: String,
}

impl Violations {
    pub(super) fn new(user: Option<&str>) -> Self {
        Self { heard: broadcast::Sender::new(HEARD), user: user.unwrap_or("unnamed").to_owned() }
    }

    pub(super) fn listen(&self) -> broadcast::Receiver<Violation> {
        self.heard.subscribe()
    }

    /// Takes an error of the server. Returns whether it was a permission error.
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
        Self::forbidden_where(heard, |forbidden| forbidden == subject).await;
    }

    /// Waits until publishing on a subject that begins so is forbidden. Returns the subject.
    pub(super) async fn forbidden_below(heard: &mut broadcast::Receiver<Violation>, start: &str) -> String {
        Self::forbidden_where(heard, |forbidden| forbidden.starts_with(start)).await
    }

    async fn forbidden_where(
        heard: &mut broadcast::Receiver<Violation>,
        is_meant: impl Fn(&str) -> bool,
    ) -> String {
        loop {
            match heard.recv().await {
                Ok(violation) if violation.publish && is_meant(&violation.subject) => {
                    return violation.subject;
                }
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

/// Reads `Permissions Violation for Publish to "subject"` within any other text.
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
