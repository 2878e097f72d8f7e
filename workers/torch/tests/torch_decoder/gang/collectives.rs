//! The result of each collective, and the end of every wait.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use millrace_policy::gang::GangError;
use millrace_torch::gang::Group;
use tch::{Device, Kind, Tensor};

use super::ranks::{PATIENCE, assignments, together};

fn numbers(tensor: &Tensor) -> Vec<f64> {
    Vec::<f64>::try_from(tensor.to_kind(Kind::Double)).unwrap()
}

#[test]
fn sums_parts_and_copies_reach_all_members() {
    for world in [2, 3] {
        let seen = together(&assignments(world, PATIENCE), |assignment| {
            let group = Group::form(assignment, Device::Cpu).unwrap();
            let own = Tensor::from_slice(&[f64::from(assignment.rank), 1.0]);
            let sum = own.copy();
            group.all_reduce(&sum).unwrap();
            let all = Tensor::zeros([2 * i64::from(world)], (Kind::Double, Device::Cpu));
            group.all_gather(&all, &own).unwrap();
            group.broadcast(&own, 1).unwrap();
            (numbers(&sum), numbers(&all), numbers(&own))
        });
        let ranks: Vec<f64> = (0..world).map(f64::from).collect();
        let all: Vec<f64> = ranks.iter().flat_map(|rank| [*rank, 1.0]).collect();
        for (sum, gathered, copy) in seen {
            assert_eq!(sum, [ranks.iter().sum::<f64>(), f64::from(world)]);
            assert_eq!(gathered, all);
            assert_eq!(copy, [1.0, 1.0]);
        }
    }
}

#[test]
fn a_member_that_never_comes_ends_the_formation() {
    let timeout = Duration::from_millis(300);
    let assignments = assignments(2, timeout);
    let since = Instant::now();
    let error = Group::form(&assignments[0], Device::Cpu).unwrap_err();
    assert!(matches!(&error, GangError::Lost(_)), "{error:?}");
    assert!(since.elapsed() < timeout + Duration::from_secs(2), "{:?}", since.elapsed());
}

/// Rank 1 joins and is then silent; rank 0 waits for it. Returns how and after how long that ended.
fn waits_in_vain(timeout: Duration, stop: bool) -> (GangError, Duration) {
    let assignments = assignments(2, timeout);
    let (waiting, over) = (Barrier::new(2), Barrier::new(2));
    let mut ends = together(&assignments, |assignment| {
        let group = Group::form(assignment, Device::Cpu).unwrap();
        waiting.wait();
        if assignment.rank == 1 {
            if stop {
                assignments[0].cancel.cancel();
            }
            over.wait();
            return None;
        }
        let since = Instant::now();
        let error = group.all_reduce(&Tensor::from_slice(&[1.0])).unwrap_err();
        let took = since.elapsed();
        assert!(group.is_broken());
        over.wait();
        Some((error, took))
    });
    ends.remove(0).unwrap()
}

#[test]
fn a_silent_member_is_lost_after_the_gangs_timeout() {
    let timeout = Duration::from_millis(700);
    let (error, took) = waits_in_vain(timeout, false);
    assert!(matches!(&error, GangError::Lost(_)), "{error:?}");
    assert!(took < timeout + Duration::from_millis(500), "{took:?}");
}

#[test]
fn a_cancelled_member_stops_waiting() {
    let (error, took) = waits_in_vain(PATIENCE, true);
    assert_eq!(error, GangError::Cancelled);
    assert!(took < Duration::from_millis(500), "{took:?}");
}

#[test]
fn a_member_that_leaves_is_noticed_at_once_by_all() {
    // In a ring of four, a member's neighbours notice its loss; the fourth learns of it when they
    // leave.
    let took = together(&assignments(4, PATIENCE), |assignment| {
        let group = Group::form(assignment, Device::Cpu).unwrap();
        group.all_reduce(&Tensor::from_slice(&[1.0])).unwrap();
        if assignment.rank == 2 {
            group.leave();
            return Duration::ZERO;
        }
        let since = Instant::now();
        let error = group.all_reduce(&Tensor::zeros([1 << 20], (Kind::Float, Device::Cpu))).unwrap_err();
        assert!(matches!(&error, GangError::Lost(_)), "{error:?}");
        group.leave();
        since.elapsed()
    });
    assert!(took.iter().all(|took| *took < Duration::from_secs(2)), "{took:?}");
}
