//! One line of the report, and what to do about it.

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// As it should be.
    Fine,
    /// The server does not have this setting.
    Lacking,
    /// It costs money, or removes a safeguard.
    Warning,
    /// Something would be lost, or nothing can run.
    Error,
}

/// What was found out about one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) level: Level,
    pub(super) what: &'static str,
    pub(super) found: String,
    /// Why it matters, and the remedy; of warnings and errors.
    pub(super) advice: Option<(String, String)>,
}

impl Finding {
    pub(super) fn fine(what: &'static str, found: impl Into<String>) -> Self {
        Self { level: Level::Fine, what, found: found.into(), advice: None }
    }

    pub(super) fn lacking(what: &'static str) -> Self {
        Self { level: Level::Lacking, what, found: "the server does not implement it".into(), advice: None }
    }

    pub(super) fn warning(
        what: &'static str,
        found: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let advice = Some((why.into(), remedy.into()));
        Self { level: Level::Warning, what, found: found.into(), advice }
    }

    pub(super) fn error(
        what: &'static str,
        found: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { level: Level::Error, ..Self::warning(what, found, why, remedy) }
    }

    /// Lines of the report.
    pub(super) fn lines(&self) -> Vec<String> {
        let Self { level, what, found, advice } = self;
        let level = match level {
            Level::Fine => "ok",
            Level::Lacking => "lacks",
            Level::Warning => "warning",
            Level::Error => "ERROR",
        };
        let mut lines = vec![format!("  {level:<8} {what:<18} {found}")];
        if let Some((why, remedy)) = advice {
            lines.push(format!("  {:<8} {:<18} why: {why}", "", ""));
            lines.push(format!("  {:<8} {:<18} remedy: {remedy}", "", ""));
        }
        lines
    }
}
