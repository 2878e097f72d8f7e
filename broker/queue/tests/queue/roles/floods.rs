//! Floods by a role's own key. The server bounds what each user holds; the others go on.

use async_nats::Client;
use futures::future::join_all;
use millrace_queue::{EventLog, QueueError};
use millrace_schemas::limits::{MAX_SERVER_CONNECTIONS, MAX_SUBMITTER_SUBSCRIPTIONS, MAX_SUBSCRIPTIONS};
use millrace_schemas::role::{Allowance, Role};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout;

use super::guarded::{Fleet, PATIENCE};

/// The users that may be hostile.
fn others() -> impl Iterator<Item = &'static str> {
    Role::ALL.into_iter().filter(|role| !role.is_at_home()).map(Role::name)
}

async fn told(complaints: &mut UnboundedReceiver<String>, words: &str) {
    let told = async {
        while let Some(complaint) = complaints.recv().await {
            if complaint.to_lowercase().contains(words) {
                return;
            }
        }
        panic!("the server never said {words:?}");
    };
    timeout(PATIENCE, told).await.expect("the server complains");
}

#[tokio::test]
async fn a_flood_of_subscriptions_ends_at_the_bound_of_each_role() {
    let fleet = Fleet::start().await;
    let coordinator = fleet.coordinator().await;
    for user in others() {
        let (client, mut complaints) = fleet.raw(user).await;
        let most = if user == "submitter" { MAX_SUBMITTER_SUBSCRIPTIONS } else { MAX_SUBSCRIPTIONS };
        let subject = |number: u32| format!("_INBOX_{user}.flood.{number}");
        let mut held = Vec::new();
        for number in 0..most {
            held.push(client.subscribe(subject(number)).await.unwrap());
        }
        client.flush().await.unwrap();
        // All of them count, and none was refused.
        client.publish(subject(most - 1), "last".into()).await.unwrap();
        let last = held.last_mut().unwrap();
        timeout(PATIENCE, futures::StreamExt::next(last)).await.expect("it hears itself").unwrap();
        assert!(complaints.try_recv().is_err(), "{user} was refused before its bound of {most}");
        held.push(client.subscribe(subject(most)).await.unwrap());
        told(&mut complaints, "maximum subscriptions exceeded").await;
        coordinator.log_end().await.unwrap();
    }
}

/// With bounds that a test reaches, in the proportions of the real ones.
#[tokio::test]
async fn a_flood_of_connections_by_every_role_leaves_room_for_the_coordinator() {
    const EACH: u32 = 4;
    let bounds: Vec<u32> = Role::ALL
        .into_iter()
        .filter_map(|role| Allowance::of(&[role]))
        .map(|allowance| allowance.connections)
        .collect();
    assert!(bounds.iter().sum::<u32>() < MAX_SERVER_CONNECTIONS);
    let all = EACH * bounds.len() as u32;
    let fleet = Fleet::start_changed(|config| {
        let lower = |config: &mut String, from: u32, to: u32| {
            let from = format!("max_connections: {from}");
            assert!(config.contains(&from), "{from}");
            *config = config.replace(&from, &format!("max_connections: {to}"));
        };
        // A refused connection counts until the server has read who it is.
        lower(config, MAX_SERVER_CONNECTIONS, all + others().count() as u32 + 1);
        let mut bounds = bounds.clone();
        bounds.sort_unstable();
        bounds.dedup();
        bounds.into_iter().for_each(|bound| lower(config, bound, EACH));
    })
    .await;
    let floods = others().map(|user| flood(&fleet, user, EACH));
    let held: Vec<Vec<Client>> = join_all(floods).await;
    assert!(held.iter().all(|held| held.len() == EACH as usize));
    let coordinator = fleet.coordinator().await;
    let end: Result<u64, QueueError> = coordinator.log_end().await;
    assert_eq!(end.unwrap(), 0);
}

/// Opens connections until the server refuses one.
async fn flood(fleet: &Fleet, user: &str, most: u32) -> Vec<Client> {
    let mut held = Vec::new();
    loop {
        match fleet.try_raw(user).await.0 {
            Ok(client) => held.push(client),
            Err(_) if held.len() as u32 >= most => return held,
            Err(error) => panic!("{user} has {} connections and gets no more: {error}", held.len()),
        }
        assert!(held.len() as u32 <= most, "{user} has {} connections", held.len());
    }
}
