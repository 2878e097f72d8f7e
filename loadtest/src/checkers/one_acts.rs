//! A coordinator whose machine was suspended does not act on a lease that another has meanwhile.

use super::history::History;

/// What an observer saw at the moments when machines woke up.
pub(super) fn check(history: &History) -> Vec<String> {
    history.would_act.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_would_act_on_the_lease_of_another_is_found() {
        assert_eq!(check(&History::default()), Vec::<String>::new());
        let seen = vec!["coordinator-0 would act where coordinator-1 has the lease".to_owned()];
        assert_eq!(check(&History { would_act: seen.clone(), ..History::default() }), seen);
    }
}
