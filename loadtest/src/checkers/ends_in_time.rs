//! After the last fault, a run ends within a multiple of its undisturbed duration. It does not idle
//! for a minute until some timeout.

use super::history::History;

/// Compares when each run ended with when it had to. Where nobody took the time there is nothing to compare.
pub(super) fn check(history: &History) -> Vec<String> {
    let late = history.ends.iter().filter(|ended| ended.took.is_none_or(|took| took > ended.most));
    late.map(|ended| {
        let took = ended.took.map_or("no end".to_owned(), |took| format!("{:.0} s", took.as_secs_f64()));
        format!("run={}: {took} after the last fault, at most {:.0} s", ended.run, ended.most.as_secs_f64())
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::history::Ended;
    use super::super::testing::run;
    use super::*;

    #[test]
    fn a_run_that_ends_late_or_never_is_found() {
        let most = Duration::from_secs(50);
        let ended = |took| Ended { run: run(), took, most };
        let history = |took| History { ends: vec![ended(took)], ..History::default() };
        assert_eq!(check(&history(Some(most))), Vec::<String>::new());
        assert_eq!(check(&history(Some(Duration::from_secs(51)))).len(), 1);
        assert!(check(&history(None))[0].contains("no end"));
    }
}
