//! What went wrong in other systems is a test of a fixed name here, and `loadtest/README.md` says
//! where.

use crate::tree;

/// One for each defect that users of other systems reported.
const NAMES: [&str; 23] = [
    "prompts_survive_restart",
    "surplus_groups_are_kept",
    "producer_failure_is_visible",
    "silent_server_times_out",
    "end_of_run_releases_workers",
    "staleness_holds_after_recovery",
    "tokens_carry_their_version",
    "versions_never_go_back",
    "engine_proves_its_weights",
    "trainer_restart_goes_on",
    "step_applied_once",
    "infra_failure_is_not_reward",
    "one_lost_rollout_refills",
    "zero_rewards_are_refused",
    "hung_env_is_replaced",
    "engine_sleeps_safely",
    "losses_see_the_behaviour_policy",
    "masks_multiply",
    "sync_equals_async_zero",
    "tokens_in_tokens_out",
    "partial_delta_is_refused",
    "config_is_checked_first",
    "shipped_examples_learn",
];

#[test]
fn every_defect_of_others_has_its_test_and_the_table_says_where() {
    let sources = tree::files(&[".rs"]);
    let readme = tree::files(&["README.md"]);
    let table = &readme.iter().find(|file| file.path == "loadtest/README.md").expect("it is there").text;
    let mut faults = Vec::new();
    for name in NAMES {
        let declared = format!("fn {name}(");
        let homes = sources.iter().filter(|file| is_test(&file.text, &declared));
        let homes: Vec<&str> = homes.map(|file| file.path.as_str()).collect();
        let row = table.lines().find(|line| line.starts_with(&format!("| `{name}`")));
        match (homes.as_slice(), row) {
            ([], _) => faults.push(format!("there is no test {name}")),
            (_, None) => faults.push(format!("loadtest/README.md has no row for {name}")),
            (homes, Some(row)) => {
                faults.extend(
                    homes
                        .iter()
                        .filter(|home| !row.contains(*home))
                        .map(|home| format!("loadtest/README.md does not say that {name} is in {home}")),
                );
            }
        }
    }
    tree::none("each known defect of other systems is tried here", &faults);
}

/// Whether `text` declares a test so.
fn is_test(text: &str, declared: &str) -> bool {
    let lines: Vec<&str> = text.lines().collect();
    lines.iter().enumerate().any(|(at, line)| {
        line.contains(declared)
            && lines[at.saturating_sub(4)..at]
                .iter()
                .any(|before| before.trim_start().starts_with("#[") && before.contains("test"))
    })
}
