//! Raw speed. Temporary.
use std::sync::Arc;
use std::time::{Duration, Instant};
use millrace_queue::port::{Message, Queue, Puller};
use millrace_queue::*;
use millrace_queue::testing::TestServer;
use millrace_schemas::*;
use bytes::Bytes;

fn msg(i: u64, n: usize) -> Message {
    Message { subject: format!("mr.task.generate.default.demo.v0.g{i}r0a0-s1"), payload: Bytes::from(vec![7u8; n]),
        headers: vec![(subjects::TRACEPARENT_HEADER, "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01".into())] }
}
fn cpu(pid: u32) -> f64 {
    let s = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let f: Vec<&str> = s.rsplit(')').next().unwrap().split_whitespace().collect();
    (f[11].parse::<f64>().unwrap() + f[12].parse::<f64>().unwrap()) / 100.0
}
struct M { t: Instant, me: f64, sv: f64, pid: u32 }
impl M {
    fn new(pid: u32) -> Self { M { t: Instant::now(), me: cpu(std::process::id()), sv: cpu(pid), pid } }
    fn say(&self, what: &str, n: u64) {
        let s = self.t.elapsed().as_secs_f64();
        println!("{what:30} {:>9.0}/s  {:.2}s  client {:.1} us/op  server {:.1} us/op", n as f64 / s, s,
            (cpu(std::process::id()) - self.me) * 1e6 / n as f64, (cpu(self.pid) - self.sv) * 1e6 / n as f64);
    }
}
async fn pull_all(p: &mut Box<dyn Puller>, n: u64, free: usize) { let mut got = 0; while got < n { let d = p.pull(free.min((n-got) as usize)).await.unwrap(); got += d.len() as u64; for d in d { d.lease.done().await.unwrap(); } } }

#[tokio::main]
async fn main() {
    let n: u64 = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(50_000);
    let flight: u64 = std::env::args().nth(2).and_then(|s| s.parse().ok()).unwrap_or(256);
    let server = TestServer::start().await;
    let pid = server.pid();
    let js = server.connect(JetStreamOptions::default()).await;
    let js2 = server.connect(JetStreamOptions::default()).await;
    let pool: PoolName = "default".parse().unwrap();
    js.ensure_pool(Stage::Generate, &pool).await.unwrap();
    let m = M::new(pid);
    for c in (0..n).collect::<Vec<_>>().chunks(512) { js.put(c.iter().map(|i| msg(*i, 512)).collect()).await; }
    m.say("put (batches of 512)", n);
    let mut p = js2.puller(Stage::Generate, &pool).await.unwrap();
    let m = M::new(pid);
    pull_all(&mut p, n, 256).await;
    m.say("pull+ack (256 free)", n);
    let m = M::new(pid);
    let mut hs = vec![];
    for w in 0..64u64 { let js = js.clone(); hs.push(tokio::spawn(async move { for i in 0..n/64 { let id = format!("demo/g{i}r{w}"); js.append(Message { subject: "mr.log.demo.outcome".into(), payload: Bytes::from(vec![7u8; 300]), headers: vec![] }, Some(&id)).await.unwrap(); } })); }
    for h in hs { h.await.unwrap(); }
    m.say("append (64 at once)", n);
    let m = M::new(pid);
    let mut log = js.read_log(1).await.unwrap(); let mut got = 0; while got < n/64*64 { got += log.next(1024).await.unwrap().len() as u64; }
    m.say("log read", n);
    // lives
    let m = M::new(pid);
    let end = js.log_end().await.unwrap();
    let workers = 2u64.min(flight); let per = flight / workers;
    let mut tasks = vec![];
    for w in 0..workers {
        let q: Arc<dyn Queue> = server.connect(JetStreamOptions::default()).await; let pool = pool.clone();
        tasks.push(tokio::spawn(async move {
            let mut p = q.puller(Stage::Generate, &pool).await.unwrap();
            let mut set = tokio::task::JoinSet::new();
            loop {
                let free = per as usize - set.len();
                tokio::select! {
                    Some(_) = set.join_next() => { while set.try_join_next().is_some() {} }
                    d = p.pull(free) => for d in d.unwrap() {
                        let q = q.clone();
                        set.spawn(async move {
                            let id = format!("demo/{}/{w}", d.message.subject);
                            q.append(Message { subject: "mr.log.demo.outcome".into(), payload: d.message.payload.slice(..300), headers: vec![] }, Some(&id)).await.unwrap();
                            d.lease.done().await.unwrap();
                        });
                    }
                }
            }
        }));
    }
    let mut log = js.read_log(end + 1).await.unwrap();
    let mut next = 1_000_000u64;
    let first: Vec<_> = (next..next + flight).map(|i| msg(i, 512)).collect(); next += flight;
    js.put(first).await;
    let mut got = 0;
    let (tx, mut rx) = tokio::sync::mpsc::unbounded_channel::<Vec<Message>>();
    { let js = js.clone(); tokio::spawn(async move { while let Some(mut v) = rx.recv().await { while let Ok(m) = rx.try_recv() { v.extend(m); } for r in js.put(v).await { assert_eq!(r.unwrap(), port::Put::Queued); } } }); }
    while got < n { let k = log.next(1024).await.unwrap().len() as u64; got += k; tx.send((next..next + k).map(|i| msg(i, 512)).collect()).unwrap(); next += k; }
    m.say(&format!("lives ({flight} in flight)"), n);
    for t in &tasks { t.abort(); }
    tokio::time::sleep(Duration::from_millis(100)).await;
    // lone
    let mut lat = vec![];
    let q = js2.clone(); let mut p2 = q.puller(Stage::EnvStep, &pool).await.unwrap();
    js.ensure_pool(Stage::EnvStep, &pool).await.unwrap();
    let h = tokio::spawn(async move { loop { for d in p2.pull(1).await.unwrap() { q.append(Message { subject: "mr.log.demo.outcome".into(), payload: d.message.payload.slice(..300), headers: vec![] }, Some(&d.message.subject)).await.unwrap(); d.lease.done().await.unwrap(); } } });
    let end = js.log_end().await.unwrap();
    let mut log = js.read_log(end + 1).await.unwrap();
    for i in 0..2000 { let t = Instant::now(); let mut m = msg(i, 512); m.subject = format!("mr.task.env_step.default.demo.v0.g{i}r0a0-e1"); js.put(vec![m]).await; while log.next(10).await.unwrap().is_empty() {} lat.push(t.elapsed()); }
    lat.sort(); println!("lone life p50 {:?} p99 {:?}", lat[1000], lat[1980]);
    h.abort();
}
