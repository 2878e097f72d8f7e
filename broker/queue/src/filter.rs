//! Subject filters of NATS: `*` matches one token, `>` matches one or more at the end.

/// Whether `subject` matches `filter`.
pub(crate) fn matches(filter: &str, subject: &str) -> bool {
    let (mut filter, mut subject) = (filter.split('.'), subject.split('.'));
    loop {
        match (filter.next(), subject.next()) {
            (None, None) => return true,
            (Some(">"), Some(_)) => return true,
            (Some("*"), Some(_)) => {}
            (Some(want), Some(have)) if want == have => {}
            (Some(_) | None, Some(_)) | (Some(_), None) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn tokens_stand_for_tokens() {
        assert!(matches("mr.task.*.*.demo.v3.>", "mr.task.generate.default.demo.v3.g1r0a0-s1"));
        assert!(!matches("mr.task.*.*.demo.v3.>", "mr.task.generate.default.demo.v30.g1r0a0-s1"));
        assert!(!matches("mr.task.>", "mr.task"));
        assert!(!matches("mr.task.*", "mr.task.a.b"));
        assert!(matches("mr.task.a", "mr.task.a"));
    }
}
