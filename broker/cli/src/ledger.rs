//! `millrace ledger`: a run's books, and their recount.

use std::process::ExitCode;

use anyhow::Result;
use millrace_schemas::RunId;
use millrace_schemas::api::{Ledger, RunRequest, RunState, Status};

use super::connect::ConnectionArgs;
use super::term::{by_reason, say, thousands};
use super::up::reopen::Asks;
use millrace_coordinator::shell::audit::{Audit, Claim, audit};

/// Arguments of `millrace ledger`.
#[derive(Debug, clap::Args)]
pub(super) struct LedgerArgs {
    /// The run; may be left out where there is only one
    run: Option<RunId>,
    /// Also recount from the object store: every version once, no rollout twice, none too stale
    #[arg(long)]
    audit: bool,
    /// Print the books as JSON
    #[arg(long, conflicts_with = "audit")]
    json: bool,
}

impl LedgerArgs {
    /// Fails if the books do not balance, or the recount disagrees.
    pub(super) async fn run(self, connection: &ConnectionArgs) -> Result<ExitCode> {
        let api = connection.reading(Asks::Coordinator).await?;
        let status: Status = api.call("status", &RunRequest { run: self.run }).await?;
        let ledger: Ledger = api.call("ledger", &RunRequest { run: Some(status.run.clone()) }).await?;
        let mut good = ledger.balanced();
        if self.json {
            say(serde_json::to_string_pretty(&ledger)?);
        } else {
            say(words(&ledger));
        }
        if self.audit {
            let objects = connection.open_objects()?;
            let audit = audit(&objects, Claim::of(&status), status.state == RunState::Finished).await?;
            audit_lines(&audit).iter().for_each(say);
            good &= audit.is_clean();
        }
        Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// `admitted 12 = trained 8 + dropped 2 (stale 2) + in flight 2: balanced`.
pub(super) fn words(ledger: &Ledger) -> String {
    let dropped: u64 = ledger.dropped.values().sum();
    let reasons = if dropped > 0 { format!(" ({})", by_reason(&ledger.dropped)) } else { String::new() };
    let [admitted, trained, dropped, in_flight] =
        [ledger.admitted, ledger.trained, dropped, ledger.in_flight].map(thousands);
    let (sign, verdict) = if ledger.balanced() { ("=", "balanced") } else { ("≠", "NOT BALANCED") };
    format!(
        "admitted {admitted} {sign} trained {trained} + dropped {dropped}{reasons} + in flight {in_flight}: {verdict}"
    )
}

/// The recount as text.
pub(super) fn audit_lines(audit: &Audit) -> Vec<String> {
    let (versions, trained) = (thousands(audit.versions), thousands(audit.trained));
    let verdict = if audit.is_clean() { "agrees" } else { "DISAGREES" };
    let first =
        format!("{versions} versions and {trained} rollouts recounted from the object store: {verdict}");
    std::iter::once(first).chain(audit.findings.iter().map(|finding| format!("  {finding}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_balance_is_spelled_out() {
        let mut ledger = crate::sample::status(10).ledger;
        assert_eq!(words(&ledger), "admitted 52 = trained 40 + dropped 2 (stale 2) + in flight 10: balanced");
        ledger.in_flight = 9;
        assert!(words(&ledger).ends_with("in flight 9: NOT BALANCED"));
    }
}
