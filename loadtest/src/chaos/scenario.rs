//! What goes wrong, how often and for how long: a file of `scenarios/`.

use std::path::Path;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

/// The scenario that is used unless another is given.
pub const SHIPPED: &str = include_str!("../../scenarios/chaos.toml");

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// `kill -9` of one process.
    Kill,
    /// `kill -9` of all processes of a role.
    KillRole,
    /// SIGSTOP, later SIGCONT, of one process.
    Pause,
    /// The same, of all processes of a role.
    PauseRole,
    /// The connection to nats-server is closed, and new ones too.
    Cut,
    /// What is sent to and from nats-server arrives later.
    Delay,
    /// The connection to nats-server stays, and nothing arrives.
    Blackhole,
    /// The disk of the object store takes no byte more.
    DiskFull,
    /// `kill -9` of the server of a cluster that leads the log.
    KillLeader,
}

impl Kind {
    /// The word in scenarios and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::KillRole => "kill_role",
            Self::Pause => "pause",
            Self::PauseRole => "pause_role",
            Self::Cut => "cut",
            Self::Delay => "delay",
            Self::Blackhole => "blackhole",
            Self::DiskFull => "disk_full",
            Self::KillLeader => "kill_leader",
        }
    }
}

/// A scenario. Ranges are `[least, most]`, in seconds.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Between the starts of two faults.
    pub every_s: [f64; 2],
    /// For which a killed process stays away.
    pub restart_s: [f64; 2],
    /// The faults to draw from.
    pub faults: Vec<Weighted>,
}

/// A kind of fault and how often it comes.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weighted {
    /// The kind.
    pub kind: Kind,
    /// How often, beside the other kinds; 0 for never.
    pub weight: u32,
    /// How long it lasts; kills last `restart_s`.
    #[serde(default)]
    pub lasts_s: Option<[f64; 2]>,
    /// How much later things arrive; for delays alone.
    #[serde(default)]
    pub delay_s: Option<[f64; 2]>,
}

impl Scenario {
    /// Reads a scenario: the file `path`, or the shipped one.
    ///
    /// # Errors
    /// The file cannot be read, or a field is wrong; the message names it.
    pub fn read(path: Option<&Path>) -> anyhow::Result<Self> {
        let (name, text) = match path {
            None => ("chaos.toml".into(), SHIPPED.to_owned()),
            Some(path) => {
                let name = path.display().to_string();
                let text = std::fs::read_to_string(path);
                (name.clone(), text.with_context(|| format!("failed to read scenario={name}"))?)
            }
        };
        let scenario: Self =
            toml::from_str(&text).with_context(|| format!("failed to read scenario={name}"))?;
        scenario.check().with_context(|| format!("scenario={name} is wrong"))?;
        Ok(scenario)
    }

    fn check(&self) -> anyhow::Result<()> {
        let range = |name: &str, [least, most]: [f64; 2], lowest: f64| {
            ensure!(
                least >= lowest && most >= least && most <= 3600.0,
                "{name} = [{least}, {most}]: give [least, most] in seconds, from {lowest} to 3600"
            );
            Ok(())
        };
        range("every_s", self.every_s, 0.01)?;
        range("restart_s", self.restart_s, 0.0)?;
        ensure!(self.faults.iter().any(|fault| fault.weight > 0), "faults: give one a weight");
        for fault in &self.faults {
            let kind = fault.kind.name();
            let kill = matches!(fault.kind, Kind::Kill | Kind::KillRole | Kind::KillLeader);
            ensure!(
                fault.lasts_s.is_none() == kill,
                "{kind}: lasts_s is for all but kills, and needed there"
            );
            let delay = fault.kind == Kind::Delay;
            ensure!(fault.delay_s.is_some() == delay, "{kind}: delay_s is for delays, and needed there");
            for (name, given) in [("lasts_s", fault.lasts_s), ("delay_s", fault.delay_s)] {
                given.map_or(Ok(()), |given| range(name, given, 0.0))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_scenarios_are_right() {
        Scenario::read(None).unwrap();
        for name in ["chaos-smoke.toml", "chaos-leader.toml"] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios").join(name);
            Scenario::read(Some(&path)).unwrap();
        }
    }

    #[test]
    fn wrong_scenarios_are_refused() {
        let start = "every_s = [1, 2]\nrestart_s = [0, 1]\n";
        for wrong in [
            "[[faults]]\nkind = \"kill\"\nweight = 0".to_owned(),
            "[[faults]]\nkind = \"flood\"\nweight = 1".to_owned(),
            "[[faults]]\nkind = \"pause\"\nweight = 1".to_owned(),
            "[[faults]]\nkind = \"pause\"\nweight = 1\nlasts_s = [2, 1]".to_owned(),
            "[[faults]]\nkind = \"pause\"\nweight = 1\nlasts_s = [1, 2]\ntypo = 1".to_owned(),
        ] {
            let read = toml::from_str::<Scenario>(&format!("{start}{wrong}"));
            assert!(read.is_err() || read.unwrap().check().is_err(), "{wrong}");
        }
    }
}
