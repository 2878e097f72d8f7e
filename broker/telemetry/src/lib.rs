//! Logs, metrics and health of every process, the same way.
