//! A dead letter goes back only to the stage whose worker could write it.

use bytes::Bytes;
use millrace_queue::port::Message;
use millrace_queue::{Broker, DeadLetterQueue, Objects};
use millrace_schemas::Event;
use millrace_schemas::subjects::{REASON_HEADER, SUBJECT_HEADER};

use super::guarded::{Fleet, PATIENCE};

#[tokio::test]
async fn a_train_workers_letter_puts_no_task_of_another_stage() {
    let fleet = Fleet::start().await;
    let coordinator = fleet.coordinator().await;
    let trainer = fleet.queue("train_shard").await;
    let letter = |at: &str, subject: &str| Message {
        subject: at.to_owned(),
        payload: Bytes::from_static(b"a model folder of the host"),
        headers: vec![(SUBJECT_HEADER, subject.to_owned()), (REASON_HEADER, "no good".to_owned())],
    };
    let (own, other) = ("mr.dead.train_shard.gang.lake.t1-0", "mr.task.generate.policy.lake.v0.g1r0a0-s1");
    // It has no right to the other stage's letters, and by its own it names the other stage.
    let forbidden = trainer.bury(letter("mr.dead.generate.policy.lake.g1r0a0-s1", other), "a").await;
    assert!(forbidden.is_err_and(|e| e.to_string().contains("permissions violation")));
    trainer.bury(letter(own, other), "b").await.unwrap();

    let broker = Broker::new(coordinator.clone(), Objects::memory());
    let letters = broker.dead_letters().await.unwrap();
    let refused = broker.requeue_dead(letters[0].seq).await.unwrap_err().to_string();
    assert!(refused.contains(own) && refused.contains(other), "{refused}");
    assert_eq!(coordinator.tasks_left().await.unwrap(), 0);
    // Nor does the log say that the task lives again.
    broker.append("all", &Event::Tick { unix_ms: 1 }).await.unwrap();
    let mut log = broker.read_log(1).await.unwrap();
    let entries = tokio::time::timeout(PATIENCE, log.next(10)).await.expect("the tick").unwrap();
    assert!(matches!(entries[0].event, Ok(Event::Tick { .. })), "{entries:?}");
}
