use super::*;

fn members(of: &[(&str, u64)]) -> Members {
    let member = |joined| Member { instance: format!("i{joined}"), joined };
    of.iter().map(|(name, joined)| (name.parse().unwrap(), member(*joined))).collect()
}

fn spec(ranks: u32, least: u32) -> GangSpec {
    GangSpec { ranks, least, patience_ms: 1_000, ..GangSpec::default() }
}

fn names(gang: &Gang) -> Option<(u64, Vec<String>)> {
    let generation = gang.generation.as_ref()?;
    Some((generation.number, generation.ranks.iter().map(|(worker, _)| worker.to_string()).collect()))
}

fn generations(number: u64, ranks: &[&str]) -> Option<(u64, Vec<String>)> {
    Some((number, ranks.iter().map(ToString::to_string).collect()))
}

#[test]
fn as_many_as_asked_for_in_the_order_of_joining() {
    let mut gang = Gang::default();
    gang.form(&spec(2, 1), &members(&[("a", 9), ("b", 3), ("c", 5)]), 0);
    assert_eq!(names(&gang), generations(1, &["b", "c"]));
    gang.form(&spec(2, 1), &members(&[("a", 9), ("b", 3), ("c", 5)]), 50);
    assert_eq!(names(&gang), generations(1, &["b", "c"]), "nothing changed");
    gang.broken = true;
    gang.form(&spec(2, 1), &members(&[("a", 9), ("b", 3), ("c", 5)]), 50);
    assert_eq!(names(&gang), generations(2, &["b", "c"]), "a void step");
}

#[test]
fn who_stays_keeps_what_it_holds_and_a_newcomer_takes_the_last_rank() {
    let mut gang = Gang::default();
    gang.form(&spec(3, 1), &members(&[("a", 1), ("b", 2), ("c", 3)]), 0);
    assert!(gang.is_intact(&members(&[("a", 1), ("b", 2), ("c", 3), ("d", 4)]), |_| true));
    let another = members(&[("a", 1), ("b", 5), ("c", 3)]);
    assert!(!gang.is_intact(&another, |_| true), "b is another process");
    assert!(gang.is_intact(&another, |rank| rank != 1), "b had done its share");
    gang.form(&spec(3, 1), &members(&[("a", 5), ("b", 2), ("c", 3)]), 0);
    assert_eq!(names(&gang), generations(2, &["b", "c", "a"]));
}

#[test]
fn too_few_wait_for_a_newcomer_and_then_go_on_with_fewer() {
    let mut gang = Gang::default();
    let one = members(&[("a", 1)]);
    gang.form(&spec(2, 1), &one, 100);
    assert_eq!(names(&gang), None);
    gang.form(&spec(2, 1), &one, 1_099);
    assert_eq!(names(&gang), None);
    gang.form(&spec(2, 1), &one, 1_100);
    assert_eq!(names(&gang), generations(1, &["a"]));
    gang.form(&spec(2, 1), &one, 5_000);
    assert_eq!(names(&gang), generations(1, &["a"]), "no wait before each step");
    gang.form(&spec(2, 1), &members(&[("a", 1), ("b", 2)]), 5_000);
    assert_eq!(names(&gang), generations(2, &["a", "b"]), "a newcomer is welcome");
    gang.form(&spec(2, 1), &one, 9_000);
    assert_eq!(names(&gang), None, "the patience starts over");
}

#[test]
fn fewer_than_the_least_never_form() {
    let mut gang = Gang::default();
    for at_ms in [0, 1_000, 1_000_000] {
        gang.form(&spec(4, 2), &members(&[("a", 1)]), at_ms);
        assert_eq!(names(&gang), None);
    }
    gang.form(&spec(4, 2), &members(&[("a", 1), ("b", 2)]), 1_000_001);
    assert_eq!(names(&gang), generations(1, &["a", "b"]));
}

#[test]
fn members_that_cannot_reach_each_other_leave_the_step_to_one() {
    let gang = |voids| Gang { voids, ..Gang::default() };
    assert!(!gang(VOIDS_BEFORE_ALONE - 1).is_alone(&spec(2, 1)));
    assert!(gang(VOIDS_BEFORE_ALONE).is_alone(&spec(2, 1)));
    assert!(gang(0).is_alone(&spec(1, 1)));
}
