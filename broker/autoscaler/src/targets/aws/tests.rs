use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::leave::LiveMachine;

const MINUTE: Duration = Duration::from_secs(60);
const NONE: [(u32, String); 0] = [];

fn instance(id: &str, phase: Phase) -> Instance {
    Instance { id: id.to_owned(), phase }
}

fn state(desired: u32, in_service: &[&str]) -> GroupState {
    let instances = in_service.iter().map(|id| instance(id, Phase::InService));
    GroupState { min: 0, max: 4, desired, instances: instances.collect() }
}

/// A group in memory: as AWS, with instances in service at once.
struct Fake {
    state: Mutex<GroupState>,
    calls: Mutex<Vec<String>>,
    /// AWS refuses to end this one.
    refused: Option<&'static str>,
}

impl Fake {
    fn new(state: GroupState) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(state), calls: Mutex::default(), refused: None })
    }

    fn target(self: &Arc<Self>, workers_per_machine: u32) -> Aws {
        Aws::of(Box::new(self.clone()), "g".into(), workers_per_machine)
    }

    fn add(&self, id: &str, phase: Phase) {
        self.state.lock().unwrap().instances.push(instance(id, phase));
    }

    /// The calls that change something, since the last time.
    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    fn end_one(&self, call: &str, id: &str) -> Result<(), AwsError> {
        self.calls.lock().unwrap().push(format!("{call} {id}"));
        let mut state = self.state.lock().unwrap();
        let found = state.instances.iter().any(|i| i.id == id && i.phase != Phase::Apart);
        if !found || self.refused == Some(id) {
            return Err(AwsError { action: call.into(), reason: "it ends already".into() });
        }
        state.instances.retain(|i| i.id != id);
        Ok(())
    }
}

#[async_trait]
impl Group for Arc<Fake> {
    async fn describe(&self) -> Result<GroupState, AwsError> {
        Ok(self.state.lock().unwrap().clone())
    }
    async fn set_desired(&self, desired: u32) -> Result<(), AwsError> {
        self.calls.lock().unwrap().push(format!("set {desired}"));
        self.state.lock().unwrap().desired = desired;
        Ok(())
    }
    async fn end(&self, instance: &str) -> Result<(), AwsError> {
        self.end_one("end", instance)?;
        self.state.lock().unwrap().desired -= 1;
        Ok(())
    }
    async fn replace(&self, instance: &str) -> Result<(), AwsError> {
        self.end_one("replace", instance)
    }
}

/// An order with workers on these machines, which go in this order.
fn order(live: &[&str], workers_each: usize) -> Order {
    let live: Vec<_> = live
        .iter()
        .map(|name| LiveMachine {
            name: (*name).to_owned(),
            workers: (0..workers_each).map(|n| format!("{name}-{n}").parse().unwrap()).collect(),
        })
        .collect();
    let occupied = live.iter().map(|machine| machine.name.clone()).collect();
    let machines = Machines { live, occupied, all_known: true, start_up: MINUTE };
    Order { machines, ..Order::default() }
}

/// Lets the target look every minute, and returns the minutes in which it called, with the calls.
async fn minutes(target: &Aws, group: &Fake, desired: u32, order: &Order, count: u32) -> Vec<(u32, String)> {
    let mut calls = Vec::new();
    for minute in 0..count {
        target.follow(desired, order).await.unwrap();
        calls.extend(group.calls().into_iter().map(|call| (minute, call)));
        tokio::time::advance(MINUTE).await;
    }
    calls
}

#[test]
fn a_group_grows_by_number_and_shrinks_by_name() {
    let step = |state: &GroupState, desired| step(state, desired, ["i-2", "i-9", "i-1"].into_iter());
    assert_eq!(step(&state(2, &["i-1", "i-2"]), 3), Step::Set(3));
    assert_eq!(step(&state(2, &["i-1", "i-2"]), 2), Step::Nothing);
    assert_eq!(step(&state(3, &["i-1", "i-2", "i-3"]), 2), Step::End(vec!["i-2".into()]));
    assert_eq!(step(&state(3, &["i-1", "i-2", "i-3"]), 0), Step::End(vec!["i-2".into(), "i-1".into()]));
    assert_eq!(step(&state(2, &["i-3", "i-4"]), 1), Step::Set(1), "no name is known");
}

#[test]
fn an_order_beyond_the_group_goes_as_far_as_its_bounds() {
    let step = |state: &GroupState, desired| step(state, desired, std::iter::empty());
    assert_eq!(step(&state(2, &[]), 99), Step::Set(4));
    assert_eq!(step(&state(4, &[]), 99), Step::Nothing);
}

#[test]
fn instances_that_aws_has_not_found_are_given_up_before_any_that_serves() {
    let chosen = || ["i-1"].into_iter();
    assert_eq!(step(&state(4, &["i-1"]), 1, chosen()), Step::Set(1));
    assert_eq!(step(&state(4, &["i-1", "i-2"]), 1, chosen()), Step::Set(2));
    assert_eq!(step(&state(4, &["i-1"]), 2, chosen()), Step::Set(2));
}

#[test]
fn a_machine_that_is_named_twice_ends_once() {
    let state = state(4, &["i-1", "i-2", "i-3", "i-4"]);
    let chosen = ["i-1", "i-2", "i-1", "i-3"].into_iter();
    assert_eq!(step(&state, 1, chosen), Step::End(["i-1", "i-2", "i-3"].map(str::to_owned).into()));
}

#[tokio::test(start_paused = true)]
async fn a_group_of_machines_with_two_workers_has_half_as_many_machines() {
    let group = Fake::new(state(0, &[]));
    let target = group.target(2);
    target.follow(3, &order(&[], 2)).await.unwrap();
    assert_eq!(group.calls(), ["set 2"], "three workers need two machines");
    group.add("i-1", Phase::InService);
    group.add("i-2", Phase::InService);
    target.follow(3, &order(&["i-2", "i-1"], 2)).await.unwrap();
    assert_eq!(group.calls(), Vec::<String>::new(), "the fourth worker is no reason to end a machine");
    target.follow(2, &order(&["i-2", "i-1"], 2)).await.unwrap();
    assert_eq!(group.calls(), ["end i-2"]);
    target.follow(2, &order(&["i-1"], 2)).await.unwrap();
    assert_eq!(group.calls(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn machines_that_do_not_serve_yet_go_before_the_one_that_does() {
    let group = Fake::new(state(4, &["i-serves", "i-old"]));
    let target = group.target(1);
    target.follow(4, &order(&["i-serves"], 1)).await.unwrap();
    assert_eq!(group.calls(), Vec::<String>::new());
    tokio::time::advance(MINUTE).await;
    group.add("i-young", Phase::InService);
    group.add("i-starts", Phase::Pending);
    target.follow(1, &order(&["i-serves"], 1)).await.unwrap();
    assert_eq!(group.calls(), ["end i-starts", "end i-young", "end i-old"]);
    let left = group.state.lock().unwrap().clone();
    assert_eq!(left, state(1, &["i-serves"]));
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_aws_does_not_end_does_not_keep_the_others() {
    let mut group = Fake::new(state(3, &["i-1", "i-2", "i-3"]));
    Arc::get_mut(&mut group).unwrap().refused = Some("i-1");
    let followed = group.target(1).follow(1, &order(&["i-1", "i-2", "i-3"], 1)).await;
    assert!(followed.is_err());
    assert_eq!(group.calls(), ["end i-1", "end i-2"]);
}

#[tokio::test(start_paused = true)]
async fn a_machine_whose_worker_was_drained_is_replaced_and_told_once() {
    let group = Fake::new(state(2, &["i-1", "i-2"]));
    let target = group.target(1);
    assert_eq!(minutes(&target, &group, 2, &order(&["i-1", "i-2"], 1), 20).await, NONE);
    // `millrace drain` of the worker on i-2.
    assert_eq!(minutes(&target, &group, 2, &order(&["i-1"], 1), 6).await, [(5, "replace i-2".to_owned())]);
    let told: Vec<String> = target.replaced().iter().map(ToString::to_string).collect();
    assert_eq!((told, target.replaced()), (vec!["i-2".to_owned()], vec![]));
    assert_eq!(group.state.lock().unwrap().desired, 2, "another one is to start");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_starts_slowly_is_not_ended_sooner_than_machines_start() {
    let group = Fake::new(state(1, &["i-1"]));
    let mut slow = order(&[], 1);
    slow.machines.start_up = 12 * MINUTE;
    let calls = minutes(&group.target(1), &group, 1, &slow, 20).await;
    assert_eq!(calls, [(12, "replace i-1".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn machines_that_never_come_up_are_replaced_one_at_a_time_and_ever_more_rarely() {
    let group = Fake::new(state(2, &["i-1", "i-2"]));
    let target = group.target(1);
    let mut calls = Vec::new();
    for n in 3..6 {
        let more = minutes(&target, &group, 2, &order(&[], 1), 60).await;
        calls.extend(more.into_iter().map(|(minute, call)| (60 * (n - 3) + minute, call)));
        group.add(&format!("i-{n}"), Phase::InService);
    }
    let expected = [(5, "replace i-1"), (15, "replace i-2"), (80, "replace i-3"), (160, "replace i-4")];
    assert_eq!(calls, expected.map(|(minute, call)| (minute, call.to_owned())));
}

#[tokio::test(start_paused = true)]
async fn a_replacement_that_comes_up_ends_the_wait_for_the_next() {
    let group = Fake::new(state(2, &["i-1", "i-2"]));
    let target = group.target(1);
    let calls = minutes(&target, &group, 2, &order(&[], 1), 6).await;
    assert_eq!(calls, [(5, "replace i-1".to_owned())]);
    group.add("i-3", Phase::InService);
    assert_eq!(minutes(&target, &group, 2, &order(&[], 1), 2).await, NONE);
    let calls = minutes(&target, &group, 2, &order(&["i-3"], 1), 4).await;
    assert_eq!(calls, [(2, "replace i-2".to_owned())], "5 minutes after the first one");
}

#[tokio::test(start_paused = true)]
async fn no_machine_is_taken_for_empty_while_a_worker_does_not_tell_its_own() {
    let group = Fake::new(state(2, &["i-1", "i-2"]));
    let target = group.target(1);
    let mut unknown = order(&["i-1"], 1);
    unknown.machines.all_known = false;
    assert_eq!(minutes(&target, &group, 2, &unknown, 60).await, NONE);
    target.follow(1, &unknown).await.unwrap();
    assert_eq!(group.calls(), ["end i-1"], "i-2 may serve; i-1 goes as chosen");
}

#[tokio::test(start_paused = true)]
async fn an_outage_in_which_nobody_looked_does_not_count() {
    let group = Fake::new(state(1, &["i-1"]));
    let target = group.target(1);
    target.follow(1, &order(&[], 1)).await.unwrap();
    tokio::time::advance(60 * MINUTE).await;
    assert_eq!(minutes(&target, &group, 1, &order(&[], 1), 5).await, NONE);
}
