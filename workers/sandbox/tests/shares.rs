//! What one sandbox can take of what all sandboxes of an owner share: its open files, the places to connect to
//! ports, its time, and the connection by which a sandbox is used.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use millrace_sandbox::End;
use millrace_sandbox::live::{Bounds, Event, Exec, Forward, Host, LiveError, LiveSandbox, Settings, Spec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::task::JoinSet;

const MIB: u64 = 1024 * 1024;
/// Connections of a forwarded port at once.
const CONNECTIONS: usize = 128;

async fn host() -> Host {
    Host::open(Settings { warm: 0, ..Settings::new(env!("CARGO_BIN_EXE_millrace-sandbox")) }).await.unwrap()
}

fn python(code: &str) -> Exec {
    Exec::new(["python3", "-c", code]).timeout_ms(60_000)
}

async fn said(sandbox: &LiveSandbox, line: &str) -> String {
    let output = sandbox.exec(Exec::shell(line).timeout_ms(60_000), b"").await.unwrap();
    assert_eq!(output.end, End::Exit(0), "{line}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Serves every connection until its client closes it, and counts those that are open.
fn serve(listener: UnixListener) -> Arc<AtomicUsize> {
    let open = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&open);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            let counted = Arc::clone(&counted);
            tokio::spawn(async move {
                let _ = stream.write_all(b"!").await;
                let _ = stream.read_to_end(&mut Vec::new()).await;
                counted.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    open
}

/// Opens as many connections as there are, and says so when all that are served were heard.
const GREEDY: &str = "import select, socket
held = []
for _ in range(300):
    s = socket.socket(socket.AF_UNIX)
    s.setblocking(False)
    try: s.connect('/dev/forward/8123')
    except BlockingIOError: continue
    held.append(s)
poll = select.poll()
for s in held: poll.register(s, select.POLLIN)
heard = 0
while heard < 128:
    for fd, _ in poll.poll():
        poll.unregister(fd)
        heard += 1
print(end='up', flush=True)
input()
";

const ASK: &str = "import socket
s = socket.socket(socket.AF_UNIX)
s.connect('/dev/forward/8123')
print(end=s.recv(1).decode())";

#[tokio::test]
async fn a_program_that_connects_to_a_forwarded_socket_by_itself_has_no_more_than_the_ports_connections() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("gateway.sock");
    let open = serve(UnixListener::bind(&to).unwrap());
    let host = host().await;
    let spec = Spec { forward: vec![Forward { port: 8123, to }], ..Spec::default() };
    let sandbox = host.create(spec).await.unwrap();
    let mut greedy = sandbox.spawn(python(GREEDY)).await.unwrap();
    assert_eq!(greedy.next().await, Event::Out(b"up".to_vec()));
    // Meanwhile others are made, and used.
    let other = host.create(Spec::default()).await.unwrap();
    assert_eq!(said(&other, "echo on").await, "on");
    assert_eq!(open.load(Ordering::SeqCst), CONNECTIONS);
    greedy.close_input().await.unwrap();
    while !matches!(greedy.next().await, Event::Ended { .. }) {}
    let asked = sandbox.exec(python(ASK), b"").await.unwrap();
    assert_eq!((asked.end, asked.stdout.as_slice()), (End::Exit(0), &b"!"[..]), "{asked:?}");
}

/// A server whose queue is full and which does not accept.
const DEAF: &str = "import socket, time
s = socket.create_server(('127.0.0.1', 8000), backlog=0)
first = socket.create_connection(('127.0.0.1', 8000))
print(end='up', flush=True)
time.sleep(1000)";

const SERVER: &str = "import socket
s = socket.create_server(('127.0.0.1', 8000))
print(end='up', flush=True)
while True: s.accept()";

#[tokio::test]
async fn a_server_that_does_not_accept_keeps_no_connection_from_other_sandboxes() {
    let host = host().await;
    let (deaf, other) =
        (host.create(Spec::default()).await.unwrap(), host.create(Spec::default()).await.unwrap());
    let mut servers = Vec::new();
    for (sandbox, code) in [(&deaf, DEAF), (&other, SERVER)] {
        let mut server = sandbox.spawn(Exec::new(["python3", "-c", code])).await.unwrap();
        assert_eq!(server.next().await, Event::Out(b"up".to_vec()));
        servers.push(server);
    }
    let deaf = Arc::new(deaf);
    let mut waiting = JoinSet::new();
    let (begin, mut begun) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..100 {
        let (deaf, begin) = (Arc::clone(&deaf), begin.clone());
        waiting.spawn(async move {
            begin.send(()).unwrap();
            deaf.connect(8000).await
        });
    }
    for _ in 0..100 {
        begun.recv().await.unwrap();
    }
    tokio::select! {
        biased;
        connected = other.connect(8000) => drop(connected.unwrap()),
        Some(first) = waiting.join_next() => panic!("it waited for those before: {first:?}"),
    }
    // Who waits too long hears why.
    let mut words = Vec::new();
    while let Some(ended) = waiting.join_next().await {
        words.push(ended.unwrap().unwrap_err().to_string());
    }
    assert!(
        words.iter().any(|words| words.contains("nothing answers on the sandbox's port 8000")),
        "{words:?}"
    );
    assert!(words.iter().any(|words| words.contains("others wait")), "{words:?}");
}

/// A look at these takes the kernel long. The rights differ, so that it makes one of no two.
const MAPPINGS: &str = "import mmap, os, time
how = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
held = [mmap.mmap(-1, 4096, how, mmap.PROT_READ | n % 2 * mmap.PROT_WRITE) for n in range(50_000)]
for _ in range(6):
    if os.fork() == 0: break
time.sleep(1000)";

#[tokio::test]
async fn mappings_without_end_end_as_memory_and_others_go_on_meanwhile() {
    let host = host().await;
    let (many, other) =
        (host.create(Spec::default()).await.unwrap(), host.create(Spec::default()).await.unwrap());
    let mut mapping = many.spawn(python(MAPPINGS)).await.unwrap();
    for _ in 0..20 {
        assert_eq!(said(&other, "echo on").await, "on");
    }
    let ended = mapping.next().await;
    assert!(matches!(ended, Event::Ended { end: End::Memory, .. }), "{ended:?}");
    assert_eq!(said(&many, "echo on").await, "on");
}

#[tokio::test]
async fn a_process_whose_name_is_no_text_has_no_more_memory_than_others() {
    let bounds = Bounds { memory_bytes: 200 * MIB, disk_bytes: 16 * MIB, ..Bounds::default() };
    let sandbox = host().await.create(Spec { bounds, ..Spec::default() }).await.unwrap();
    // Less than what the sandbox's group may have, with its files and the kernel's share.
    let code = "open('/proc/self/comm', 'wb').write(b'\\xff\\xfe')\nx = bytearray(240 << 20)\nimport time\ntime.sleep(1000)";
    let ended = sandbox.exec(Exec::new(["python3", "-c", code]).timeout_ms(20_000), b"").await.unwrap();
    assert_eq!(ended.end, End::Memory, "{ended:?}");
}

#[tokio::test]
async fn a_folder_whose_names_are_too_long_to_list_is_an_error_of_that_call() {
    let sandbox = host().await.create(Spec::default()).await.unwrap();
    let links = "import os\nos.mkdir('long')\nfor n in range(1100): os.symlink('x' * 4000, f'long/{n}')";
    assert_eq!(sandbox.exec(python(links), b"").await.unwrap().end, End::Exit(0));
    let error = sandbox.list("/home/user/long").await.unwrap_err();
    assert!(matches!(error, LiveError::File(_)), "{error:?}");
    assert!(error.to_string().contains("more than 2097152 bytes; list it by a command"), "{error}");
    assert!(sandbox.is_alive());
    said(&sandbox, "cd long; ls | tail -n +501 | xargs rm").await;
    assert_eq!(sandbox.list("/home/user/long").await.unwrap().len(), 500);
}

#[tokio::test]
async fn a_path_that_is_longer_than_any_is_an_error_of_that_call() {
    let sandbox = host().await.create(Spec::default()).await.unwrap();
    let long = "/x".repeat(2_500_000);
    let errors = [
        sandbox.read(&long, 1).await.unwrap_err(),
        sandbox.write(&long, b"").await.unwrap_err(),
        sandbox.remove(&long).await.unwrap_err(),
        sandbox.make_folder(&long).await.unwrap_err(),
        sandbox.list(&long).await.unwrap_err(),
        sandbox.look(&long).await.unwrap_err(),
        sandbox.rename(&long, "/tmp/x").await.unwrap_err(),
        sandbox.rename("/tmp/x", &long).await.unwrap_err(),
    ];
    for error in errors {
        let words = error.to_string();
        assert!(words.contains("5000000 bytes; a path has at most 4096") && words.len() < 300, "{words}");
    }
    // Words without a letter are no less.
    let empty =
        sandbox.exec(Exec::new(vec!["true"].into_iter().chain(std::iter::repeat_n("", 5_000_000))), b"");
    let error = empty.await.unwrap_err().to_string();
    assert!(error.contains("argv and env") && error.contains("standard input"), "{error}");
    assert!(sandbox.is_alive());
    assert_eq!(said(&sandbox, "echo on").await, "on");
}
