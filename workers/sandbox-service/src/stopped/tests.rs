//! Stopped ones of the same name.

use std::collections::BTreeMap;

use axum::http::HeaderMap;
use millrace_sandbox::egress::rules::Rules;
use millrace_sandbox::live::{Bounds, Host, Settings as HostSettings};

use super::*;
use crate::keys::Keys;
use crate::network::Network;
use crate::service::{Settings, Wanted};

const KEYS: [&str; 2] = ["key-of-the-first-owner", "key-of-another-owner"];

async fn service() -> Service {
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().unwrap().with_file_name("millrace-sandbox");
    assert!(program.exists(), "build it first: cargo build --release -p millrace-sandbox");
    let host = Host::open(HostSettings { warm: 0, ..HostSettings::new(program) }).await.unwrap();
    let hour = Duration::from_secs(3_600);
    Service::start(
        host,
        Settings {
            keys: Keys::parse(&KEYS.join("\n")).unwrap(),
            images: vec!["base".to_owned()],
            store: None,
            most: 4,
            bounds: Bounds::default(),
            idle: hour,
            life: hour,
            keep: (hour, hour),
            network: Network::new(Rules::default(), Vec::new()),
        },
    )
}

#[tokio::test]
async fn files_that_arrive_late_are_not_taken_for_those_of_another_of_the_same_name() {
    let service = service().await;
    let mut of = BTreeMap::new();
    for key in KEYS {
        let headers = HeaderMap::from_iter([(axum::http::header::AUTHORIZATION, key.parse().unwrap())]);
        let owner = service.owner(&headers).unwrap();
        let named =
            |id: &str| Wanted { id: Some(id.to_owned()), image: "base".to_owned(), ..Wanted::default() };
        let made = service.make(owner, named("same")).await.unwrap();
        made.live.write("/home/user/whose", key.as_bytes()).await.unwrap();
        // Its name is free, as it is once it is deleted while it is being stopped.
        service.table().live.remove("same");
        of.insert(key, made);
    }
    let [first, second] = KEYS.map(|key| &of[key]);
    let mut stopped = StoppedOnes::default();
    stopped.expect(first);
    assert!(stopped.forget(first.owner, "same"));
    stopped.expect(second);
    // What the first one left comes now.
    stopped.arrived(first, first.stop().await);
    let early = stopped.take(second.owner, "same").unwrap_err().to_string();
    assert!(early.contains("it is being stopped"), "{early}");
    // One that left nothing takes nothing along.
    stopped.arrived(first, None);
    stopped.arrived(second, second.stop().await);
    let (before, files) = stopped.take(second.owner, "same").unwrap().unwrap();
    let (spec, _) = service.spec(&before.wanted, None).unwrap();
    let again = files.start(spec).await.map_err(|(_, error)| error).unwrap();
    assert_eq!(again.read("/home/user/whose", 100).await.unwrap(), KEYS[1].as_bytes());
}
