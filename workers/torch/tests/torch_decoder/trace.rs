//! Traces of what libtorch does.

use std::panic::{AssertUnwindSafe, catch_unwind};

use millrace_torch::trace;
use serde_json::Value;
use tch::{Device, Kind, Tensor};

/// The names of a trace's events.
fn names(compute: impl FnOnce()) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    trace(&path, compute).unwrap();
    let trace: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    events.iter().filter_map(|event| Some(event["name"].as_str()?.to_owned())).collect()
}

/// One at a time: the profiler is the process's.
#[test]
fn a_trace_has_what_was_computed_and_a_panic_ends_it() {
    let square = || Tensor::ones([8, 8], (Kind::Float, Device::cuda_if_available()));
    let multiplied = names(|| drop(square().mm(&square())));
    assert!(multiplied.iter().any(|name| name == "aten::mm"), "{multiplied:?}");

    let folder = tempfile::tempdir().unwrap();
    let broken = || trace(&folder.path().join("broken.json"), || panic!("shapes differ"));
    catch_unwind(AssertUnwindSafe(broken)).unwrap_err();
    let next = names(|| drop(square().exp()));
    assert!(next.iter().any(|name| name == "aten::exp"), "{next:?}");

    let nowhere = trace(&folder.path().join("no/such/folder.json"), || ()).unwrap_err();
    assert!(nowhere.contains("no/such"), "{nowhere}");
}
