use super::*;

fn rendezvous() -> Arc<MemoryRendezvous> {
    Arc::default()
}

#[test]
fn a_value_is_waited_for_until_it_comes() {
    let (here, there) = (rendezvous(), CancellationToken::new());
    let waiting = {
        let here = here.clone();
        std::thread::spawn(move || here.wait("key", Instant::now() + Duration::from_secs(60), &there))
    };
    here.set("other", b"not this").unwrap();
    here.set("key", b"value").unwrap();
    assert_eq!(waiting.join().unwrap().unwrap(), b"value");
}

#[test]
fn a_wait_ends_at_its_deadline_and_on_cancellation() {
    let cancel = CancellationToken::new();
    let error = rendezvous().wait("key", Instant::now(), &cancel).unwrap_err();
    assert!(matches!(&error, GangError::Lost(why) if why.contains("key=key")), "{error:?}");
    cancel.cancel();
    let late = Instant::now() + Duration::from_secs(60);
    assert_eq!(rendezvous().wait("key", late, &cancel), Err(GangError::Cancelled));
}
