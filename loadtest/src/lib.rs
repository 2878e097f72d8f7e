//! Millrace.
