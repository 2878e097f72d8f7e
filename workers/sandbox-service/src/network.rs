//! Hosts that a sandbox reaches: what a client lists, within what the service's operator allows.

use millrace_sandbox::egress::rules::{Private, Rule, RuleError, Rules};
use millrace_sandbox::egress::{Egress, EgressError, EgressSettings, Gate};
use millrace_sandbox::live::LiveError;

use crate::service::{ServiceError, invalid};

/// The option that has the operator's list.
const FLAG: &str = "--network";
/// The field of a request that has the client's.
const FIELD: &str = "network.allowOut";
/// Ports that an entry without one means.
const WEB: [u16; 2] = [443, 80];
/// Entries of a client's list.
const MOST: usize = 64;

/// A host is opened for all that is not on the list of those that may be opened.
#[derive(Debug, thiserror::Error)]
#[error("--network-unasked={0} is not on --network; add it there, or leave it out")]
pub struct Beyond(String);

/// The ways out of the service's sandboxes.
#[derive(Debug, Clone)]
pub struct Network {
    ways: Egress,
    /// Where sandboxes get to whose clients cannot ask.
    unasked: Rules,
}

impl Network {
    /// Clients may open what is on this list; `private` are private addresses that it may lead to.
    #[must_use]
    pub fn new(allowed: Rules, private: Vec<Private>) -> Self {
        let ways = Egress::new(EgressSettings::new(allowed, private, FLAG));
        Self { ways, unasked: Rules::default() }
    }

    /// The same, and sandboxes whose clients cannot ask for hosts reach these.
    ///
    /// # Errors
    /// One of them is not on the list of those that may be opened.
    pub fn with_unasked(self, unasked: Rules) -> Result<Self, Beyond> {
        match unasked.first_beyond(self.ways.allowed()) {
            Some(rule) => Err(Beyond(rule.to_string())),
            None => Ok(Self { unasked, ..self }),
        }
    }

    /// The hosts of a sandbox whose client cannot ask.
    pub(crate) fn unasked(&self) -> Rules {
        self.unasked.clone()
    }

    /// The rules that a client's entries mean: `host:port`, or a host alone, which means its ports 443
    /// and 80 as far as they are allowed.
    ///
    /// # Errors
    /// An entry is none, or nothing of it is allowed.
    pub(crate) fn read(&self, entries: &[String]) -> Result<Rules, ServiceError> {
        if entries.len() > MOST {
            return Err(invalid(
                FIELD,
                format!("[{} entries]", entries.len()),
                format!("list at most {MOST}"),
            ));
        }
        let rules: Vec<Vec<Rule>> =
            entries.iter().map(|entry| self.rules(entry)).collect::<Result<_, _>>()?;
        Ok(rules.into_iter().flatten().collect())
    }

    fn rules(&self, entry: &str) -> Result<Vec<Rule>, ServiceError> {
        let meant = match entry.parse::<Rule>() {
            Ok(rule) => vec![rule],
            Err(_) if entry.contains('/') => {
                return Err(invalid(FIELD, entry, "name hosts; networks of addresses are not served"));
            }
            Err(_) => WEB
                .iter()
                .map(|port| format!("{entry}:{port}").parse())
                .collect::<Result<_, _>>()
                .map_err(|error: RuleError| invalid(FIELD, entry, error.to_string()))?,
        };
        let allowed: Vec<Rule> = meant.into_iter().filter(|rule| self.ways.allowed().cover(rule)).collect();
        if allowed.is_empty() {
            let remedy = format!(
                "the operator of this service does not allow it; leave it out, or start the service with {FLAG}"
            );
            return Err(invalid(FIELD, entry, remedy));
        }
        Ok(allowed)
    }

    /// Opens the way out of a sandbox to these hosts; `None` where there are none.
    ///
    /// # Errors
    /// More is asked for than is allowed, or the way cannot be opened.
    pub(crate) fn open(&self, rules: Rules) -> Result<Option<Gate>, ServiceError> {
        if rules.is_empty() {
            return Ok(None);
        }
        self.ways.open(rules).map(Some).map_err(|error| match error {
            EgressError::Beyond(rule) => invalid(FIELD, rule.to_string(), "it is not allowed; leave it out"),
            EgressError::Listen(_) => LiveError::Refused(error.to_string()).into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_opens_what_the_operator_allows_and_no_more() {
        let lists = |entries: &[&str]| entries.iter().map(|&entry| entry.to_owned()).collect::<Vec<_>>();
        let allowed = lists(&["pypi.org:443", "*.pythonhosted.org:443", "git.test:80", "git.test:443"]);
        let network = Network::new(Rules::read(&allowed).unwrap(), Vec::new());
        let read = |entries: &[&str]| network.read(&lists(entries)).map_err(|error| error.to_string());
        let rules = |entries: &[&str]| Ok(Rules::read(&lists(entries)).unwrap());
        assert_eq!(read(&[]), rules(&[]));
        assert_eq!(
            read(&["pypi.org", "a.pythonhosted.org:443"]),
            rules(&["pypi.org:443", "a.pythonhosted.org:443"])
        );
        assert_eq!(read(&["git.test"]), rules(&["git.test:443", "git.test:80"]));
        for (entry, words) in [
            ("other.test", "--network"),
            ("pypi.org:80", "does not allow"),
            ("pythonhosted.org", "does not allow"),
            ("*", "*.pythonhosted.org:443"),
            ("0.0.0.0/0", "name hosts"),
            ("169.254.169.254", "link-local"),
            ("user@pypi.org", "a host is a name"),
            ("../pypi.org", "name hosts"),
        ] {
            let refused = read(&["pypi.org", entry]).unwrap_err();
            assert!(
                refused.contains(FIELD) && refused.contains(entry) && refused.contains(words),
                "{refused}"
            );
        }
        assert!(read(&vec!["pypi.org"; MOST + 1]).unwrap_err().contains("at most 64"));
        let nothing = Network::new(Rules::default(), Vec::new());
        assert!(nothing.read(&lists(&["pypi.org"])).is_err());
    }

    #[test]
    fn what_nobody_asks_for_is_of_what_may_be_opened() {
        let rules = |entries: &[&str]| {
            Rules::read(&entries.iter().map(|&entry| entry.to_owned()).collect::<Vec<_>>())
        };
        let network =
            || Network::new(rules(&["pypi.org:443", "*.pythonhosted.org:443"]).unwrap(), Vec::new());
        assert!(network().unasked().is_empty());
        let opened = network().with_unasked(rules(&["files.pythonhosted.org:443"]).unwrap()).unwrap();
        assert_eq!(opened.unasked(), rules(&["files.pythonhosted.org:443"]).unwrap());
        let refused = network().with_unasked(rules(&["pypi.org:443", "pypi.org:80"]).unwrap()).unwrap_err();
        assert!(refused.to_string().contains("pypi.org:80"), "{refused}");
    }
}
