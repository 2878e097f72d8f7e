//! One trace per rollout: the W3C `traceparent` that travels in message headers, and the span whose
//! log lines carry the rollout's id.

use std::fmt;
use std::str::FromStr;

use tracing::Span;

/// A W3C trace context of version 00.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceParent {
    /// The trace; not 0.
    pub trace_id: u128,
    /// The span that the message was sent from; not 0.
    pub span_id: u64,
    /// Whether the trace is to be recorded.
    pub sampled: bool,
}

/// A text that is not a `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotATraceParent;

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, u8::from(self.sampled))
    }
}

impl FromStr for TraceParent {
    type Err = NotATraceParent;

    fn from_str(s: &str) -> Result<Self, NotATraceParent> {
        let mut fields = s.split('-');
        let mut next = |digits: usize| {
            let field = fields.next().filter(|field| field.len() == digits).ok_or(NotATraceParent)?;
            let hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
            if field.bytes().all(hex) { Ok(field) } else { Err(NotATraceParent) }
        };
        let (version, trace, span, flags) = (next(2)?, next(32)?, next(16)?, next(2)?);
        let trace_id = u128::from_str_radix(trace, 16).map_err(|_| NotATraceParent)?;
        let span_id = u64::from_str_radix(span, 16).map_err(|_| NotATraceParent)?;
        let flags = u8::from_str_radix(flags, 16).map_err(|_| NotATraceParent)?;
        // Later versions may append fields; version ff is never valid.
        let ends = version != "00" || fields.next().is_none();
        if version == "ff" || trace_id == 0 || span_id == 0 || !ends {
            return Err(NotATraceParent);
        }
        Ok(Self { trace_id, span_id, sampled: flags & 1 == 1 })
    }
}

/// The span of one task. Log lines within it carry `trace_id`, `run` and `task`.
#[must_use]
pub fn task_span(traceparent: Option<&str>, run: &str, task: &dyn fmt::Display) -> Span {
    let span = tracing::info_span!("task", trace_id = tracing::field::Empty, run, task = %task);
    if let Some(Ok(parent)) = traceparent.map(str::parse::<TraceParent>) {
        span.record("trace_id", format_args!("{:032x}", parent.trace_id));
    }
    span
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_survives_its_header() {
        let example = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context: TraceParent = example.parse().unwrap();
        assert_eq!(context.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(context.to_string(), example);
    }

    #[test]
    fn what_is_no_context_is_refused() {
        for wrong in [
            "",
            "00",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        ] {
            assert_eq!(wrong.parse::<TraceParent>(), Err(NotATraceParent), "{wrong}");
        }
    }
}
