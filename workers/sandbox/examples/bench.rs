//! What long-lived sandboxes cost: creating one, cold and from the pool, forking, rolling back, at
//! 1, 50 and 1,000 at once, with bubblewrap beside it where its path is the second argument. The
//! first is the path of `millrace-sandbox`. Prints a table in Markdown.
#![expect(clippy::print_stdout, reason = "a program for people")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use millrace_sandbox::live::{Exec, Host, LiveSandbox, Settings, Snapshot, Spec};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Sandboxes at once, and how many times each is measured.
const AT_ONCE: [(usize, usize); 3] = [(1, 40), (50, 200), (1_000, 1_000)];
/// Sandboxes of the pool.
const WARM: usize = 64;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1).map(PathBuf::from);
    let program = args.next().context("the path of millrace-sandbox is missing")?;
    let bwrap = args.next();
    println!("| what | at once | n | p50 ms | p95 ms | p99 ms | failed |\n|---|---|---|---|---|---|---|");
    let open = |warm| Host::open(Settings { warm, ..Settings::new(&program) });
    for (at_once, n) in AT_ONCE {
        let cold = open(0).await?;
        row("create, cold", at_once, n, || create(cold.clone())).await;
        let warm = open(WARM).await?;
        if at_once <= WARM {
            row("create, warm", at_once, n, || create_warm(warm.clone())).await;
        }
        let snapshot = filled(&warm).await?;
        row("fork", at_once, n, || fork(warm.clone(), snapshot.clone())).await;
        row("rollback", at_once, n.min(200), || rollback(warm.clone(), snapshot.clone())).await;
        if let Some(bwrap) = &bwrap {
            row("bwrap around true", at_once, n, || bubblewrap(bwrap.clone())).await;
        }
    }
    Ok(())
}

type Took = anyhow::Result<(Duration, Option<LiveSandbox>)>;

async fn create(host: Host) -> Took {
    let began = Instant::now();
    let sandbox = host.create(Spec::default()).await?;
    Ok((began.elapsed(), Some(sandbox)))
}

/// Waits until the pool has one for each that is made at once.
async fn create_warm(host: Host) -> Took {
    while host.warm() < WARM {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    create(host).await
}

async fn fork(host: Host, from: Snapshot) -> Took {
    let began = Instant::now();
    let sandbox = host.fork(&from, Spec::default()).await?;
    Ok((began.elapsed(), Some(sandbox)))
}

async fn rollback(host: Host, to: Snapshot) -> Took {
    let mut sandbox = host.fork(&to, Spec::default()).await?;
    sandbox.exec(Exec::shell("echo changed > file; rm -r tree"), b"").await?;
    let began = Instant::now();
    sandbox.rollback(&to).await?;
    Ok((began.elapsed(), Some(sandbox)))
}

async fn bubblewrap(program: PathBuf) -> Took {
    let began = Instant::now();
    let arguments = "--unshare-all --die-with-parent --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev --tmpfs /tmp /bin/true";
    let status = tokio::process::Command::new(program).args(arguments.split(' ')).status().await?;
    anyhow::ensure!(status.success(), "bwrap failed: {status}");
    Ok((began.elapsed(), None))
}

/// A snapshot with 1,000 files.
async fn filled(host: &Host) -> anyhow::Result<Snapshot> {
    let mut sandbox = host.create(Spec::default()).await?;
    let fill = "mkdir tree; for i in $(seq 1000); do echo $i > tree/$i; done; echo one > file";
    sandbox.exec(Exec::shell(fill), b"").await?;
    Ok(sandbox.snapshot().await?)
}

/// Measures `n` of them, so many at once, which all live until the last is there.
async fn row<F>(what: &str, at_once: usize, n: usize, make: impl Fn() -> F)
where
    F: Future<Output = Took> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(at_once));
    let mut tasks = JoinSet::new();
    for _ in 0..n {
        let (room, made) = (Arc::clone(&room), make());
        tasks.spawn(async move {
            let _room = room.acquire_owned().await?;
            made.await
        });
    }
    let (mut times, mut alive, mut failed) = (Vec::new(), Vec::new(), 0);
    while let Some(done) = tasks.join_next().await {
        match done.map_err(anyhow::Error::from).and_then(|took| took) {
            Ok((took, sandbox)) => {
                times.push(took);
                // A thousand live at once; of fewer each goes when the next is measured.
                alive.extend(sandbox.filter(|_| at_once == n));
            }
            Err(error) => {
                failed += 1;
                println!("failed: {error:#}");
            }
        }
    }
    times.sort_unstable();
    let at = |share: f64| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a place in a list"
        )]
        let place = (share * times.len() as f64) as usize;
        times.get(place.min(times.len().saturating_sub(1))).map_or(f64::NAN, |took| took.as_secs_f64() * 1e3)
    };
    println!("| {what} | {at_once} | {n} | {:.1} | {:.1} | {:.1} | {failed} |", at(0.5), at(0.95), at(0.99));
}
