use std::pin::Pin;

use millrace_policy::gang::MemoryRendezvous;
use tch::{Device, Kind};

use super::*;
use crate::gang::Group;

/// A member alone in its gang.
fn alone() -> Group {
    let assignment = RankAssignment {
        gang: "reducer".to_owned(),
        rank: 0,
        world: 1,
        timeout: Duration::from_secs(60),
        rendezvous: std::sync::Arc::new(MemoryRendezvous::default()),
        cancel: Default::default(),
    };
    Group::form(&assignment, Device::Cpu).unwrap()
}

/// What each of these does to a reducer with one bucket of one leaf is refused.
fn refused(wrong: impl Fn(Pin<&mut ffi::Reducer>) -> Option<cxx::Exception>) -> String {
    let group = alone();
    let mut reducer = group.reducer(false);
    let [output, input] = [(); 2].map(|()| Tensor::zeros([4], (Kind::Float, Device::Cpu)));
    reducer.add_bucket(&output, &input);
    reducer.add_leaf_by_hand();
    wrong(reducer.0.pin_mut()).map_or_else(String::new, |error| error.what().to_owned())
}

#[test]
fn an_unknown_bucket_is_refused() {
    assert!(refused(|reducer| reducer.filled(1).err()).contains("bucket 1 of 1"));
    assert!(refused(|reducer| reducer.take(1).err()).contains("not under way"));
    assert!(refused(|reducer| reducer.take(0).err()).contains("not under way"), "nothing has begun");
    let group = alone();
    let mut empty = group.reducer(false);
    let error = empty.0.pin_mut().add_leaf_by_hand().err().map(|error| error.what().to_owned());
    assert!(error.is_some_and(|error| error.contains("there is none")));
}

#[test]
fn a_bucket_filled_more_often_than_it_has_leaves_is_refused() {
    let error = refused(|mut reducer| {
        reducer.as_mut().arm();
        reducer.as_mut().filled(0).expect("its one leaf");
        // The failure is kept until the rest is started, for autograd passes none on.
        reducer.as_mut().filled(0).expect("kept");
        reducer.start_rest().err()
    });
    assert!(error.contains("more often than it has leaves"), "{error}");
}
