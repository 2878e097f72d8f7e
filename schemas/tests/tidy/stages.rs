//! One vocabulary: each stage has a file of its name for what travels, what happens next, and how
//! it is done.

use millrace_schemas::Stage;

use crate::tree;

#[test]
fn every_stage_has_its_files() {
    let mut faults = Vec::new();
    for stage in Stage::ALL {
        let mut wanted =
            vec![format!("schemas/src/{stage}.rs"), format!("broker/coordinator/src/fold/stages/{stage}.rs")];
        // A run is submitted by the API; no worker does that.
        if Stage::QUEUED.contains(&stage) {
            wanted.push(format!("workers/src/{stage}.rs"));
        }
        faults.extend(wanted.into_iter().filter(|path| !tree::root().join(path).is_file()));
    }
    tree::none("these files are missing", &faults);
}

#[test]
fn modules_of_stages_stand_in_the_order_of_a_tasks_life() {
    let map = std::fs::read_to_string(tree::root().join("schemas/src/lib.rs")).expect("the crate has a root");
    let places: Vec<Option<usize>> =
        Stage::ALL.iter().map(|stage| map.find(&format!("pub mod {stage};"))).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "schemas/src/lib.rs: {places:?}");
}
