//! Long-lived sandboxes as their owner uses them, on the real program.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use millrace_sandbox::End;
use millrace_sandbox::live::{
    Bounds, Event, Exec, FileKind, Forward, Host, LiveError, LiveSandbox, Output, Settings, Spec, Wall,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MIB: u64 = 1024 * 1024;

async fn host() -> Host {
    host_with(0).await
}

async fn host_with(warm: usize) -> Host {
    let settings = Settings { warm, ..Settings::new(env!("CARGO_BIN_EXE_millrace-sandbox")) };
    Host::open(settings).await.unwrap()
}

async fn sandbox() -> LiveSandbox {
    host().await.create(Spec::default()).await.unwrap()
}

async fn shell(sandbox: &LiveSandbox, line: &str) -> Output {
    sandbox.exec(Exec::shell(line).timeout_ms(60_000), b"").await.unwrap()
}

fn text(output: &Output) -> (End, String) {
    let all = [output.stdout.as_slice(), &output.stderr].concat();
    (output.end, String::from_utf8_lossy(&all).trim().to_owned())
}

async fn said(sandbox: &LiveSandbox, line: &str) -> String {
    let (end, said) = text(&shell(sandbox, line).await);
    assert_eq!(end, End::Exit(0), "{line}: {said}");
    said
}

#[tokio::test]
async fn commands_run_and_leave_their_files_and_servers() {
    let sandbox = sandbox().await;
    assert_eq!(sandbox.lacks(), [] as [Wall; 0]);
    let output = sandbox.exec(Exec::shell("cat; echo aside >&2; exit 3"), b"given").await.unwrap();
    assert_eq!((output.end, output.code()), (End::Exit(3), 3));
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"given"[..], &b"aside\n"[..]));
    assert_eq!(said(&sandbox, "echo kept > file; pwd; id -un; hostname").await, "/home/user\nuser\nsandbox");
    assert_eq!(said(&sandbox, "cat file").await, "kept");
    // A server in the background outlives the command that started it, and is reached by the next.
    let server = "python3 -m http.server --bind 127.0.0.1 8000 >/dev/null 2>&1 & echo $!";
    let pid = said(&sandbox, server).await;
    let ask = "for i in $(seq 200); do python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:8000/file\").read().decode())' 2>/dev/null && exit 0; sleep 0.05; done; exit 1";
    assert_eq!(said(&sandbox, ask).await, "kept");
    assert_eq!(said(&sandbox, &format!("kill {pid} && echo gone")).await, "gone");
    let program = sandbox.exec(Exec::new(["/no/such/program"]), b"").await.unwrap();
    assert_eq!(program.code(), 127, "{:?}", text(&program));
    assert_eq!(text(&shell(&sandbox, "kill -9 $$").await).0, End::Exit(137));
    // What programs expect of a system.
    let system = "echo a | cat <(cat) > /dev/null && ls /proc/self/fd >/dev/null && python3 -c 'import pty, multiprocessing as m; m.Lock(); pty.openpty(); print(1)'";
    assert_eq!(said(&sandbox, system).await, "1");
    sandbox.end().await;
}

/// `^C` works in a terminal also where a script started the owner in the background.
#[tokio::test]
async fn signals_that_the_owner_ignores_have_their_defaults_within() {
    let folder = tempfile::tempdir().unwrap();
    let program = ignoring(folder.path());
    let host = Host::open(Settings { warm: 0, ..Settings::new(program) }).await.unwrap();
    let sandbox = host.create(Spec::default()).await.unwrap();
    let ignored = said(&sandbox, "grep SigIgn /proc/self/status").await;
    let mask = u64::from_str_radix(ignored.trim_start_matches("SigIgn:").trim(), 16).unwrap();
    // Above 31 are those of the C library's own.
    assert_eq!(mask & 0x7fff_ffff, 0, "{ignored}");
    assert_eq!(text(&shell(&sandbox, "kill -INT $$; sleep 3000").await).0, End::Exit(130));
}

/// A program that ignores signals, and goes on as `millrace-sandbox`.
fn ignoring(folder: &Path) -> PathBuf {
    let (draft, path) = (folder.join("draft"), folder.join("ignoring"));
    let program = env!("CARGO_BIN_EXE_millrace-sandbox");
    let text = format!("#!/bin/sh\ntrap '' INT QUIT HUP USR1 TSTP\nexec {program} \"$@\"\n");
    std::fs::write(&draft, text).unwrap();
    // By another process: a file that this one wrote is busy while a fork of another thread has it open, too.
    assert!(Command::new("install").arg("-m755").args([&draft, &path]).status().unwrap().success());
    path
}

#[tokio::test]
async fn a_command_is_heard_while_it_runs() {
    let sandbox = sandbox().await;
    let mut cat = sandbox.spawn(Exec::new(["cat"])).await.unwrap();
    for line in ["one\n", "two\n"] {
        cat.write(line.as_bytes()).await.unwrap();
        assert_eq!(cat.next().await, Event::Out(line.as_bytes().to_vec()));
    }
    // Meanwhile another one runs.
    assert_eq!(said(&sandbox, "echo beside").await, "beside");
    cat.close_input().await.unwrap();
    assert!(matches!(cat.next().await, Event::Ended { end: End::Exit(0), .. }));
    // More than fits into any pipe or frame, both ways.
    let long = vec![b'x'; 9_000_000];
    let output = sandbox.exec(Exec::new(["cat"]), &long).await.unwrap();
    assert!(output.stdout == long, "{} bytes", output.stdout.len());
    let mut sleeps = sandbox.spawn(Exec::new(["sleep", "1000"])).await.unwrap();
    sleeps.signal(15).await.unwrap();
    assert!(matches!(sleeps.next().await, Event::Ended { end: End::Exit(143), .. }));
    let mut killed = sandbox.spawn(Exec::shell("sleep 1000 & sleep 1000")).await.unwrap();
    killed.kill().await.unwrap();
    assert!(matches!(killed.next().await, Event::Ended { end: End::Signal(9), .. }));
    // Dropped, it is killed with all that came of it.
    drop(sandbox.spawn(Exec::shell("exec -a dropped sleep 1000")).await.unwrap());
    let gone =
        "for i in $(seq 400); do grep -aqs ^dropped /proc/[0-9]*/cmdline || exit 0; sleep 0.05; done; exit 1";
    assert_eq!(said(&sandbox, gone).await, "");
}

/// Counts processes by their first word.
const COUNT: &str = "grep -las ^WORD /proc/[0-9]*/cmdline | wc -l";

/// One may be reaped before it is known that there is something to read of it.
#[tokio::test]
async fn what_commands_write_as_they_end_is_heard_although_many_end_at_once() {
    let sandbox = sandbox().await;
    for _ in 0..20 {
        let mut running = Vec::new();
        for n in 0..40 {
            let exec = Exec::shell(&format!("sleep 0.1; echo {n}"));
            running.push((n, sandbox.spawn(exec).await.unwrap()));
        }
        for (n, mut process) in running {
            let mut said = String::new();
            let end = loop {
                match process.next().await {
                    Event::Out(bytes) | Event::Err(bytes) => said += &String::from_utf8_lossy(&bytes),
                    Event::Ended { end, .. } => break end,
                }
            };
            assert_eq!((end, said), (End::Exit(0), format!("{n}\n")));
        }
    }
}

#[tokio::test]
async fn a_timeout_ends_everything_that_a_command_started_and_nothing_else() {
    let sandbox = sandbox().await;
    said(&sandbox, "(exec -a neighbour sleep 1000) >/dev/null 2>&1 &").await;
    // It leaves its session, its parents end, it does not hear signals, and it makes more all the
    // while.
    let hostile = "import os, signal, time\n\
        for s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n\
        for _ in range(3):\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork(): os._exit(0)\n        os.environ.clear()\n        if os.fork() == 0: os.execv('/bin/sleep', ['daemon', '1000'])\n        while True:\n            if os.fork() == 0: os.setsid(); time.sleep(0.01); os._exit(0)\n            time.sleep(0.001)\n\
        time.sleep(1000)";
    let began = Instant::now();
    let late = sandbox.exec(Exec::new(["python3", "-c", hostile]).timeout_ms(1_500), b"").await.unwrap();
    assert_eq!((late.end, late.code()), (End::Wall, 124), "{:?}", text(&late));
    assert!(began.elapsed() < Duration::from_secs(60));
    assert_eq!(said(&sandbox, &COUNT.replace("WORD", "daemon")).await, "0");
    assert_eq!(
        said(&sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[i]mport os, signal'; true").await,
        "0"
    );
    // The supervisor, which holds a command together, killed from within: what it held goes, too.
    let kill_parent = "import os, signal, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: os.execv('/bin/sleep', ['daemon', '1000'])\n    os._exit(0)\ntime.sleep(0.2)\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(1000)";
    let killed =
        sandbox.exec(Exec::new(["python3", "-c", kill_parent]).timeout_ms(60_000), b"").await.unwrap();
    assert_eq!(killed.end, End::Signal(9), "{:?}", text(&killed));
    assert_eq!(said(&sandbox, &COUNT.replace("WORD", "daemon")).await, "0");
    assert_eq!(said(&sandbox, &COUNT.replace("WORD", "neighbour")).await, "1");
    // All of it, and the files stay.
    said(&sandbox, "echo kept > file").await;
    sandbox.kill_all().await.unwrap();
    assert_eq!(said(&sandbox, &COUNT.replace("WORD", "neighbour")).await, "0");
    assert_eq!(said(&sandbox, "cat file").await, "kept");
}

#[tokio::test]
async fn a_command_that_takes_long_to_die_takes_none_along() {
    let bounds = Bounds { memory_bytes: 4_096 * MIB, ..Bounds::default() };
    let sandbox = host().await.create(Spec { bounds, ..Spec::default() }).await.unwrap();
    let mut beside = sandbox.spawn(Exec::new(["cat"])).await.unwrap();
    // Memory that is used has to be given back.
    let slow = "x = bytearray(1 << 30)\nprint(end='up', flush=True)\nimport time\ntime.sleep(1000)";
    for round in 0..3 {
        let mut large = sandbox.spawn(Exec::new(["python3", "-c", slow])).await.unwrap();
        assert_eq!(large.next().await, Event::Out(b"up".to_vec()), "{round}");
        large.kill().await.unwrap();
        let ended = large.next().await;
        assert!(matches!(ended, Event::Ended { end: End::Signal(9), .. }), "{round}: {ended:?}");
        beside.write(b"on").await.unwrap();
        assert_eq!(beside.next().await, Event::Out(b"on".to_vec()), "{round}");
    }
}

#[tokio::test]
async fn bounds_hold_and_the_sandbox_goes_on() {
    let bounds = Bounds {
        memory_bytes: 200 * MIB,
        disk_bytes: 8 * MIB,
        files: 500,
        processes: 30,
        ..Bounds::default()
    };
    let sandbox = host().await.create(Spec { bounds, ..Spec::default() }).await.unwrap();
    let exec = |line: &str| Exec::shell(line).timeout_ms(60_000);
    let flood = sandbox.exec(Exec { output_bytes: 100_000, ..exec("yes") }, b"").await.unwrap();
    assert_eq!((flood.end, flood.stdout.len()), (End::Output, 100_000));
    let memory = "python3 -c 'import time\nx = []\nwhile True: x.append(bytearray(b\"x\") * (1 << 20)); time.sleep(0.002)'";
    assert_eq!(sandbox.exec(exec(memory), b"").await.unwrap().end, End::Memory);
    let disk =
        text(&sandbox.exec(exec("head -c 9000000 /dev/zero > big; echo $?; rm -f big"), b"").await.unwrap())
            .1;
    assert!(disk.contains("No space left") || disk.contains("File too large"), "{disk}");
    let files = text(
        &sandbox.exec(exec("for i in $(seq 600); do : > f$i || break; done; rm -f f*"), b"").await.unwrap(),
    )
    .1;
    assert!(files.contains("No space left"), "{files}");
    let bomb = "import os, time\nn = 0\ntry:\n    while True:\n        if os.fork() == 0: time.sleep(1000)\n        n += 1\nexcept OSError: print(n <= 30)";
    let bomb = sandbox.exec(Exec::new(["python3", "-c", bomb]).timeout_ms(60_000), b"").await.unwrap();
    assert_eq!(text(&bomb), (End::Exit(0), "True".to_owned()));
    // Its processes are in the background now; a snapshot is one way to end them.
    let mut sandbox = sandbox;
    sandbox.snapshot().await.unwrap();
    assert_eq!(said(&sandbox, "echo on").await, "on");
}

#[tokio::test]
async fn a_command_that_follows_one_without_memory_is_not_killed_for_it() {
    let bounds = Bounds { memory_bytes: 100 * MIB, ..Bounds::default() };
    let sandbox = host().await.create(Spec { bounds, ..Spec::default() }).await.unwrap();
    let memory = "python3 -c 'import time\nx = []\nwhile True: x.append(bytearray(b\"x\") * (1 << 20)); time.sleep(0.001)'; echo went on";
    for round in 0..20 {
        let killed = sandbox.exec(Exec::shell(memory).timeout_ms(60_000), b"").await.unwrap();
        assert_eq!(killed.end, End::Memory, "{round}: {:?}", text(&killed));
        let next = text(&shell(&sandbox, "sleep 0.1; echo on").await);
        assert_eq!(next, (End::Exit(0), "on".to_owned()), "{round}");
    }
}

#[tokio::test]
async fn files_are_read_and_written_from_outside() {
    let sandbox = sandbox().await;
    let long: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    sandbox.write("/home/user/new/folder/long", &long).await.unwrap();
    assert_eq!(said(&sandbox, "stat -c '%s %U' new/folder/long").await, "3000000 user");
    assert!(sandbox.read("/home/user/new/folder/long", 3_000_000).await.unwrap() == long);
    let over = sandbox.read("/home/user/new/folder/long", 2_999_999).await.unwrap_err();
    assert!(over.to_string().contains("more than 2999999 bytes"), "{over}");
    sandbox.write("/home/user/new/folder/long", b"short").await.unwrap();
    assert_eq!(said(&sandbox, "cat new/folder/long").await, "short");
    said(&sandbox, "ln -s folder new/link; mkfifo new/pipe; echo 12 > new/odd; mv new/odd $'new/o\\xffd'")
        .await;
    let entries = sandbox.list("/home/user/new").await.unwrap();
    let kinds: Vec<_> = entries.iter().map(|entry| (entry.name.as_str(), entry.kind)).collect();
    let expected = [
        ("folder", FileKind::Folder),
        ("link", FileKind::Symlink),
        ("o\u{fffd}d", FileKind::File),
        ("pipe", FileKind::Other),
    ];
    assert_eq!(kinds, expected);
    assert_eq!(
        sandbox.look("/home/user/new/link").await.unwrap().unwrap().leads_to.as_deref(),
        Some("folder")
    );
    assert_eq!(sandbox.look("/nothing").await.unwrap(), None);
    sandbox.rename("/home/user/new/folder", "/tmp/a/b").await.unwrap();
    assert_eq!(sandbox.read("/tmp/a/b/long", 10).await.unwrap(), b"short");
    sandbox.remove("/tmp/a").await.unwrap();
    for (path, words) in [
        ("/tmp/a/b/long", "No such file"),
        ("/home/user/new/pipe", "no regular file"),
        ("/dev/zero", "no regular file"),
        ("/proc/self/mem", "no regular file"),
        ("/tmp", "no regular file"),
        ("tmp", "name it from /"),
        ("/a\0b", "NUL"),
    ] {
        let error = sandbox.read(path, 100).await.unwrap_err().to_string();
        assert!(
            ["directory", "Permission denied", words].iter().any(|words| error.contains(words)),
            "{path}: {error}"
        );
    }
    let error = sandbox.write("/usr/bin/planted", b"").await.unwrap_err().to_string();
    assert!(error.contains("Read-only file system"), "{error}");
}

#[tokio::test]
async fn a_port_leads_to_a_socket_outside_and_nothing_else_does() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("gateway.sock");
    let listener = tokio::net::UnixListener::bind(&to).unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut asked = [0; 4];
                stream.read_exact(&mut asked).await.unwrap();
                stream.write_all(&[b"to ", &asked[..]].concat()).await.unwrap();
            });
        }
    });
    let outside = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = outside.local_addr().unwrap().port();
    let spec = Spec { forward: vec![Forward { port: 8123, to }], ..Spec::default() };
    let mut sandbox = host().await.create(spec).await.unwrap();
    let ask = "import socket\ns = socket.create_connection(('127.0.0.1', 8123), 10)\ns.sendall(b'me!!')\nprint(s.makefile().read())";
    for _ in 0..2 {
        let asked = sandbox.exec(Exec::new(["python3", "-c", ask]), b"").await.unwrap();
        assert_eq!(text(&asked), (End::Exit(0), "to me!!".to_owned()));
        // It is there after a snapshot as well.
        sandbox.snapshot().await.unwrap();
    }
    for (address, port) in [("127.0.0.1", port), ("1.1.1.1", 53), ("169.254.169.254", 80)] {
        let line = format!("import socket\nsocket.create_connection(({address:?}, {port}), 2)");
        let asked = sandbox.exec(Exec::new(["python3", "-c", &line]), b"").await.unwrap();
        assert_eq!(asked.end, End::Exit(1), "{address}: {asked:?}");
    }
}

#[tokio::test]
async fn snapshots_fork_and_roll_back() {
    let host = host_with(4).await;
    let mut first = host.create(Spec::default()).await.unwrap();
    said(&first, "mkdir -p d/e; echo 1 > d/one; echo 1 > d/e/deep; echo gone > gone").await;
    let one = first.snapshot().await.unwrap();
    said(&first, "echo 2 > d/one; rm gone; rm -r d/e; mkdir d/e; echo 2 > d/two; mv d/one d/moved").await;
    let two = first.snapshot().await.unwrap();
    assert_eq!((one.depth(), two.depth()), (1, 2));
    let look = "cd ~; find . -type f | sort | xargs grep -H .";
    let (at_one, at_two) = ("./d/e/deep:1\n./d/one:1\n./gone:gone", "./d/moved:2\n./d/two:2");
    assert_eq!(said(&first, look).await, at_two);
    // Forks see neither one another nor what the first does.
    let mut forks = Vec::new();
    for n in 0..4 {
        let fork = host.fork(&two, Spec::default()).await.unwrap();
        said(&fork, &format!("echo {n} > mine")).await;
        forks.push(fork);
    }
    for (n, fork) in forks.iter().enumerate() {
        assert_eq!(said(fork, look).await, format!("{at_two}\n./mine:{n}"));
    }
    assert_eq!(said(&first, look).await, at_two);
    first.rollback(&one).await.unwrap();
    assert_eq!(said(&first, look).await, at_one);
    said(&first, "rm -r d gone").await;
    first.rollback(&one).await.unwrap();
    assert_eq!(said(&first, look).await, at_one);
    // Layers live as long as somebody needs them.
    drop((first, one, two));
    assert_eq!(said(&forks[0], "cat d/two").await, "2");
    for fork in forks {
        fork.end().await;
    }
}

#[tokio::test]
async fn a_stopped_sandbox_starts_again_with_its_files_and_nothing_that_ran() {
    let host = host().await;
    let bounds = Bounds { disk_bytes: 16 * MIB, ..Bounds::default() };
    let spec = Spec { bounds, ..Spec::default() };
    let mut first = host.create(spec.clone()).await.unwrap();
    said(&first, "mkdir deep && echo a > deep/below && echo b > removed").await;
    let below = first.snapshot().await.unwrap();
    // One over layers and one without any.
    for mut sandbox in
        [host.fork(&below, spec.clone()).await.unwrap(), host.create(spec.clone()).await.unwrap()]
    {
        said(&sandbox, "rm -rf deep removed; mkdir deep; echo c > deep/own; ln -s deep/own link").await;
        said(&sandbox, "sleep 1000 >/dev/null 2>&1 & head -c 9000000 /dev/zero > large").await;
        for round in 0..3 {
            let stopped = sandbox.stop().await.unwrap();
            assert!(sandbox.stop().await.is_none(), "its files are there once");
            assert_eq!(sandbox.exec(Exec::shell("true"), b"").await.unwrap_err(), LiveError::Ended);
            drop(sandbox);
            sandbox = stopped.start(spec.clone()).await.unwrap();
            assert_eq!(
                said(&sandbox, "ls; cat link; pgrep -c sleep || true").await,
                "deep\nlarge\nlink\nc\n0"
            );
            said(&sandbox, &format!("echo {round} >> rounds && mv rounds deep/ && mv deep/rounds .")).await;
            assert_eq!(said(&sandbox, "tail -n 1 rounds; rm rounds").await, round.to_string());
        }
        // What it wrote before counts.
        let (end, words) = text(&shell(&sandbox, "head -c 9000000 /dev/zero > more").await);
        assert!(end != End::Exit(0) && words.contains("No space left"), "{words}");
    }
}

#[tokio::test]
async fn a_stopped_sandbox_that_left_a_trap_does_not_start_and_keeps_its_files() {
    let host = host().await;
    let sandbox = host.create(Spec::default()).await.unwrap();
    said(&sandbox, "echo kept > file && mv /tmp /was && ln -s /etc /tmp").await;
    let mut stopped = sandbox.stop().await.unwrap();
    for _ in 0..2 {
        let (again, error) = stopped.start(Spec::default()).await.unwrap_err();
        assert!(error.to_string().contains("symlink at /tmp"), "{error}");
        stopped = again;
    }
    let spec = Spec { read: vec!["etc".into()], ..Spec::default() };
    let (_, error) = stopped.start(spec).await.unwrap_err();
    assert!(matches!(error, LiveError::Invalid { field: "read", .. }), "{error}");
}

#[tokio::test]
async fn an_upgrade_of_the_program_does_not_stop_its_host() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = folder.path().join("millrace-sandbox");
    let link = || std::fs::hard_link(env!("CARGO_BIN_EXE_millrace-sandbox"), &program).unwrap();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    link();
    let host = Host::open(Settings { warm: 0, ..Settings::new(&program) }).await.unwrap();
    std::fs::remove_file(&program).unwrap();
    link();
    let sandbox = host.create(Spec::default()).await.unwrap();
    assert_eq!(said(&sandbox, "echo on").await, "on");
}

#[tokio::test]
async fn what_is_missing_or_wrong_is_said() {
    let missing = Host::open(Settings::new("/no/such/program")).await;
    assert!(matches!(missing, Err(LiveError::Start { .. })), "{missing:?}");
    let host = host().await;
    for (spec, words) in [
        (Spec { read: vec!["relative".into()], ..Spec::default() }, "absolute"),
        (Spec { read: vec!["/usr/../etc".into()], ..Spec::default() }, "without `..`"),
        (Spec { read: vec!["/no/such/folder".into()], ..Spec::default() }, "/no/such/folder"),
        (Spec { forward: vec![Forward { port: 0, to: "/x".into() }], ..Spec::default() }, "none 0"),
        (Spec { bounds: Bounds { disk_bytes: 1, ..Bounds::default() }, ..Spec::default() }, "disk_bytes"),
        (Spec { env: [("A=B".to_owned(), String::new())].into(), ..Spec::default() }, "no `=`"),
    ] {
        let refused = host.create(spec).await.unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
    }
    let sandbox = host.create(Spec::default()).await.unwrap();
    for (exec, words) in [
        (Exec::new([""]), "name a program"),
        (Exec::new(["a\0b"]), "NUL"),
        (Exec::new(["true"]).cwd("/no/such/folder"), "/no/such/folder"),
        (Exec::new(["x".repeat(2_000_000)]), "2000001 bytes"),
    ] {
        let refused = sandbox.exec(exec, b"").await.unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
    }
    // Still there.
    assert_eq!(said(&sandbox, "echo on").await, "on");
}
