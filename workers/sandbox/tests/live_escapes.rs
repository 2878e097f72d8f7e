//! Programs that try to get out of a long-lived sandbox, or to keep something of it, each with what
//! it must not reach.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use millrace_sandbox::End;
use millrace_sandbox::live::{Bounds, Digest, Exec, Host, LiveSandbox, Settings, Spec, Wall};

async fn host() -> Host {
    Host::open(Settings { warm: 0, ..Settings::new(env!("CARGO_BIN_EXE_millrace-sandbox")) }).await.unwrap()
}

async fn sandbox() -> LiveSandbox {
    host().await.create(Spec::default()).await.unwrap()
}

/// What lines of Python end with: `ok`, or the name of their error and its number.
async fn tried(sandbox: &LiveSandbox, lines: &str) -> String {
    let lines = lines.replace('\n', "\n    ");
    let code = format!(
        "import os, sys, socket, ctypes, signal\ntry:\n    {lines}\n    print('ok')\nexcept BaseException as error:\n    print(type(error).__name__, getattr(error, 'errno', ''))"
    );
    let output = sandbox.exec(Exec::new(["python3", "-c", &code]).timeout_ms(60_000), b"").await.unwrap();
    assert_eq!(output.end, End::Exit(0), "{lines}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn the_machines_files_are_not_there_to_read_or_write() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "secret").unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let spec = Spec { read: vec![folder.path().to_owned()], ..Spec::default() };
    let shown = host().await.create(spec).await.unwrap();
    let path = secret.to_str().unwrap();
    // What is shown is there to read alone, at its place, with `..` as well.
    assert_eq!(tried(&shown, &format!("assert open({path:?}).read() == 'secret'")).await, "ok");
    assert_eq!(tried(&shown, &format!("open({path:?}, 'w')")).await, "OSError 30");
    assert_eq!(shown.read(path, 10).await.unwrap(), b"secret");
    assert!(shown.write(path, b"planted").await.is_err());
    let hidden = sandbox().await;
    let climbs = format!("/home/user/{}{path}", "../".repeat(30));
    for path in
        [path, &climbs, "/old", "/l", "/etc/shadow", "/sys/kernel", "/boot", env!("CARGO_MANIFEST_DIR")]
    {
        let said = tried(&hidden, &format!("os.stat({path:?})")).await;
        assert_eq!(said, "FileNotFoundError 2", "{path}");
        assert!(hidden.read(path, 10).await.is_err(), "{path}");
    }
    // Written from outside through a symlink that a program made, it stays within.
    tried(&hidden, &format!("os.makedirs('/tmp/a')\nos.symlink({path:?}, 'link')")).await;
    let _ = hidden.write("/home/user/link", b"planted").await;
    assert_eq!(std::fs::read(&secret).unwrap(), b"secret");
    for line in [
        "open('/usr/planted', 'w')",
        "open('/bin/sh', 'r+b')",
        "open('/dev/sandbox', 'r+b')",
        "os.mkdir('/dev/planted')",
        "os.remove('/etc/ld.so.cache')",
        "open('/proc/sys/kernel/hostname', 'w').write('x')",
        "open('/proc/sysrq-trigger', 'w').write('b')",
        "os.mknod('disk', 0o600 | 0o060000, os.makedev(254, 0))",
        "os.mknod('mem', 0o600 | 0o020000, os.makedev(1, 1))",
    ] {
        let said = tried(&hidden, line).await;
        // Not every kernel has the trigger.
        let refused = ["OSError", "PermissionError", "FileNotFoundError"];
        assert!(refused.iter().any(|error| said.starts_with(error)), "{line}: {said}");
    }
}

#[tokio::test]
async fn no_call_of_the_kernel_leads_out() {
    let sandbox = sandbox().await;
    // 101 ptrace, 165 mount, 155 pivot_root, 161 chroot, 272 unshare, 308 setns, 298
    // perf_event_open, 321 bpf, 250 keyctl, 425 io_uring_setup, 310 process_vm_readv, 438
    // pidfd_getfd, 323 userfaultfd, 435 clone3, 304 open_by_handle_at, 29 shmget, 105 setuid, 126
    // capset, 429 move_mount, 430 fsopen, 188 setxattr, x32's getpid.
    for call in [
        101,
        165,
        155,
        161,
        272,
        308,
        298,
        321,
        250,
        425,
        310,
        438,
        323,
        435,
        304,
        29,
        105,
        126,
        429,
        430,
        188,
        0x4000_0000 + 39,
    ] {
        let line = format!(
            "libc = ctypes.CDLL(None, use_errno=True); r = libc.syscall({call}, 0, 0, 0, 0, 0); assert r == -1 and ctypes.get_errno() == 38, (r, ctypes.get_errno())"
        );
        assert_eq!(tried(&sandbox, &line).await, "ok", "call {call}");
    }
    let status = tried(&sandbox, "s = open('/proc/self/status').read()\nassert 'CapEff:\\t0000000000000000' in s and 'CapBnd:\\t0000000000000000' not in s and 'NoNewPrivs:\\t1' in s and 'Seccomp:\\t2' in s, s").await;
    assert_eq!(status, "ok");
    for line in [
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
        "socket.socket(38, socket.SOCK_SEQPACKET)",
    ] {
        let said = tried(&sandbox, line).await;
        assert!(said.starts_with("OSError") || said.starts_with("PermissionError"), "{line}: {said}");
    }
}

#[tokio::test]
async fn nobody_else_is_there() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let host = host().await;
    let (one, other) =
        (host.create(Spec::default()).await.unwrap(), host.create(Spec::default()).await.unwrap());
    let said = tried(&one, &format!("socket.create_connection(('127.0.0.1', {port}), 2)")).await;
    assert!(said.starts_with("ConnectionRefusedError"), "{said}");
    // A neighbour's server, file and abstract socket.
    let serve = "import socket, time, threading\ns = socket.create_server(('127.0.0.1', 9000))\na = socket.socket(socket.AF_UNIX); a.bind('\\0abstract'); a.listen()\nprint('up', flush=True)\ntime.sleep(1000)";
    let mut server = other.spawn(Exec::new(["python3", "-c", serve])).await.unwrap();
    assert_eq!(server.next().await, millrace_sandbox::live::Event::Out(b"up\n".to_vec()));
    other.write("/tmp/mine", b"").await.unwrap();
    for line in [
        "socket.create_connection(('127.0.0.1', 9000), 2)",
        "socket.socket(socket.AF_UNIX).connect('\\0abstract')",
        "open('/tmp/mine')",
    ] {
        assert_ne!(tried(&one, line).await, "ok", "{line}");
    }
    // The processes that are seen are one's own; the first takes no signal and shows nothing.
    assert_eq!(
        tried(&one, "assert max(int(p) for p in os.listdir('/proc') if p.isdigit()) < 1000").await,
        "ok"
    );
    let first = "os.kill(1, signal.SIGKILL)\nos.kill(1, signal.SIGTERM)\nos.stat('/proc/1/exe')";
    let said = tried(&one, first).await;
    assert!(said.starts_with("PermissionError"), "{said}");
    for file in ["mem", "environ", "fd/0", "root/etc"] {
        let said = tried(&one, &format!("open('/proc/1/{file}', 'rb').read(1)")).await;
        assert!(said.starts_with("PermissionError"), "{file}: {said}");
    }
    assert_eq!(tried(&one, &format!("os.kill({}, 0)", std::process::id())).await, "ProcessLookupError 3");
    assert!(one.is_alive());
}

#[tokio::test]
async fn a_timeout_ends_processes_whose_names_are_no_text() {
    let sandbox = sandbox().await;
    let hides = "open('/proc/self/comm', 'wb').write(b'\\xff)')\nimport os, time\nfor _ in range(3):\n    if os.fork(): time.sleep(1000)\n    os.setsid()\ntime.sleep(1000)";
    let late = sandbox.exec(Exec::new(["python3", "-c", hides]).timeout_ms(1_500), b"").await.unwrap();
    assert_eq!(late.end, End::Wall, "{late:?}");
    let left = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[i]mport os, time'; true";
    let left = sandbox.exec(Exec::shell(left), b"").await.unwrap();
    assert_eq!(left.stdout, b"0\n", "{left:?}");
}

#[tokio::test]
async fn a_layer_that_lies_about_the_systems_folders_is_refused() {
    // Where folders of the system are mounted a layer has symlinks to the machine's: what is
    // written there when the sandbox is built would be written outside.
    let host = host().await;
    for place in ["etc", "tmp", "home", "proc"] {
        let store = tempfile::tempdir().unwrap();
        let mut to = tar::Builder::new(zstd::Encoder::new(Vec::new(), 1).unwrap());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        header.set_mode(0o777);
        header.set_mtime(0);
        to.append_link(&mut header, place, "/old/tmp").unwrap();
        let bytes = to.into_inner().unwrap().finish().unwrap();
        let digest = put(store.path(), &bytes);
        let layer = host.load(&[digest], store.path(), &Bounds::default()).await.unwrap();
        let refused = host.fork(&layer, Spec::default()).await.unwrap_err().to_string();
        assert!(refused.contains("symlink") || refused.contains("no folder"), "{place}: {refused}");
    }
}

fn put(folder: &std::path::Path, bytes: &[u8]) -> Digest {
    use sha2::Digest as _;
    let name: String = sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    std::fs::write(folder.join(format!("{name}.tar.zst")), bytes).unwrap();
    Digest::parse(&name).unwrap()
}

#[tokio::test]
async fn layers_go_into_a_store_and_come_back_elsewhere() {
    let store = tempfile::tempdir().unwrap();
    let (here, there) = (host().await, host().await);
    let mut first = here.create(Spec::default()).await.unwrap();
    let fill = "mkdir -p d/e locked; echo 1 > d/one; ln d/one d/same; ln -s one d/link; mkfifo d/pipe; echo x > d/run; chmod 750 d/run; echo gone > gone; echo deep > d/e/deep; chmod 0 locked; head -c 3000000 /dev/urandom > big; touch -d @1000000000 d/one; printf '' > $'o\\xffd'; mkdir -p $(printf 'long-name-%.0s' $(seq 20))/$(printf 'x%.0s' $(seq 200))";
    first.exec(Exec::shell(fill), b"").await.unwrap();
    first.snapshot().await.unwrap();
    first.exec(Exec::shell("rm gone; rm -r d/e; mkdir d/e; echo new > d/e/new"), b"").await.unwrap();
    let two = first.snapshot().await.unwrap();
    let digests = here.save(&two, store.path()).await.unwrap();
    assert_eq!((digests.len(), two.depth()), (2, 2));
    // Saved again, it is the same; nothing half written is left.
    assert_eq!(here.save(&two, store.path()).await.unwrap(), digests);
    assert_eq!(std::fs::read_dir(store.path()).unwrap().count(), 2);
    let loaded = there.load(&digests, store.path(), &Bounds::default()).await.unwrap();
    let second = there.fork(&loaded, Spec::default()).await.unwrap();
    let look = "chmod 755 locked 2>/dev/null; find . -printf '%p %y %m %l %n\\n' | sort; find . -type f ! -name pipe | sort | xargs -d '\\n' md5sum; stat -c %Y d/one";
    let (one, other) = (
        first.exec(Exec::shell(look), b"").await.unwrap(),
        second.exec(Exec::shell(look), b"").await.unwrap(),
    );
    assert_eq!(String::from_utf8_lossy(&one.stdout), String::from_utf8_lossy(&other.stdout));
    let seen = String::from_utf8_lossy(&other.stdout);
    assert!(seen.contains("./d/e/new") && !seen.contains("deep") && !seen.contains("gone"), "{seen}");
    // Layers that are not what their name says, that are missing, or that do not fit.
    let small = Bounds { disk_bytes: 1 << 20, ..Bounds::default() };
    let refused = there.load(&digests, store.path(), &small).await.unwrap_err().to_string();
    assert!(refused.contains("No space left"), "{refused}");
    let path = store.path().join(format!("{}.tar.zst", digests[0].as_str()));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.extend(zstd::encode_all(&b"more"[..], 1).unwrap());
    std::fs::write(&path, bytes).unwrap();
    let refused = there.load(&digests, store.path(), &Bounds::default()).await.unwrap_err().to_string();
    assert!(refused.contains("digest"), "{refused}");
    std::fs::remove_file(&path).unwrap();
    let refused = there.load(&digests, store.path(), &Bounds::default()).await.unwrap_err().to_string();
    assert!(refused.contains("No such file"), "{refused}");
    for wrong in ["../../etc/passwd", "", &"g".repeat(64), &"A".repeat(64)] {
        assert!(Digest::parse(wrong).is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn a_missing_wall_is_refused_or_said() {
    // A machine whose /proc is covered in part, as in containers: a sandbox gets none of its own.
    let folder = tempfile::tempdir().unwrap();
    let (draft, script) = (folder.path().join("draft"), folder.path().join("start"));
    let program = env!("CARGO_BIN_EXE_millrace-sandbox");
    let text = format!(
        "#!/bin/sh\nexport PATH=/usr/sbin:/usr/bin:/sbin:/bin\n[ \"$1\" = keep ] || exec {program} \"$@\"\n[ $(id -u) = 0 ] && how=-m || how=-Urm\nexec unshare $how sh -c 'mount -t tmpfs none /proc/sys && exec {program} keep'\n"
    );
    std::fs::write(&draft, text).unwrap();
    // By another process: a file that this one wrote is busy while a fork of another thread has it open, too.
    assert!(Command::new("install").arg("-m755").args([&draft, &script]).status().unwrap().success());
    let covered = Host::open(Settings { warm: 0, ..Settings::new(&script) }).await.unwrap();
    let needs = |walls: &[Wall]| Spec { needs: walls.to_vec(), ..Spec::default() };
    let refused = covered.create(needs(&[Wall::Landlock, Wall::Proc])).await.unwrap_err().to_string();
    assert!(refused.contains("Proc") && refused.contains("needs"), "{refused}");
    let sandbox = covered.create(needs(&[Wall::Landlock])).await.unwrap();
    assert_eq!(sandbox.lacks(), [Wall::Proc]);
    // A timeout then ends all that runs.
    let background = sandbox.exec(Exec::shell("sleep 1000 >/dev/null 2>&1 & echo $!"), b"").await.unwrap();
    let pid = String::from_utf8(background.stdout).unwrap();
    assert_eq!(sandbox.exec(Exec::shell("sleep 1000").timeout_ms(300), b"").await.unwrap().end, End::Wall);
    let gone = format!(
        "for i in $(seq 200); do kill -0 {} 2>/dev/null || exit 0; sleep 0.02; done; exit 1",
        pid.trim()
    );
    assert_eq!(sandbox.exec(Exec::shell(&gone), b"").await.unwrap().end, End::Exit(0));
}
