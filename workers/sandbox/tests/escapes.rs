//! Programs that try to get out of the sandbox, or to take more than is theirs, each with what it
//! must not reach. What is tried is tried outside as well where that says that the walls, and
//! nothing else, stopped it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use millrace_sandbox::run::Results;
use millrace_sandbox::{End, File, Job, Limits, Protection, Ran, Run, Sandbox, SandboxError};

const PATIENCE: Duration = Duration::from_secs(120);
const MIB: u64 = 1024 * 1024;

fn sandbox() -> Sandbox {
    Sandbox::at(env!("CARGO_BIN_EXE_millrace-sandbox"), 4)
}

fn limits() -> Limits {
    Limits {
        wall_ms: 20_000,
        cpu_ms: 10_000,
        memory_bytes: 256 * MIB,
        disk_bytes: 8 * MIB,
        ..Limits::default()
    }
}

fn job(code: &str, limits: Limits) -> Job {
    let command = ["/usr/bin/python3", "-I", "main.py"].map(str::to_owned).to_vec();
    let files = vec![File { name: "main.py".to_owned(), text: code.to_owned() }];
    Job {
        files,
        runs: vec![Run { command, stdin: "in\n".to_owned() }],
        limits,
        read: vec![],
        may_lack: vec![],
    }
}

async fn results(job: &Job) -> Result<Results, SandboxError> {
    tokio::time::timeout(PATIENCE, sandbox().run(job, |_, _| true)).await.unwrap()
}

async fn run_in(code: &str, limits: Limits) -> Ran {
    let results = results(&job(code, limits)).await.unwrap();
    assert_eq!((results.runs.len(), results.lacks.len()), (1, 0), "{results:?}");
    results.runs.into_iter().next().unwrap()
}

async fn run(code: &str) -> Ran {
    run_in(code, limits()).await
}

/// What a line of Python ends with: `ok`, or the name of its error.
async fn tried(line: &str) -> String {
    let code = format!(
        "import os, sys, socket, ctypes, signal\ntry:\n    {line}\n    print('ok')\nexcept BaseException as error:\n    print(type(error).__name__, getattr(error, 'errno', ''))"
    );
    let ran = run(&code).await;
    assert_eq!(ran.end, End::Exit(0), "{line}: {ran:?}");
    ran.stdout.trim().to_owned()
}

/// What a program sees does not depend on how its worker was started.
#[tokio::test]
async fn signals_that_the_worker_ignores_have_their_defaults_in_a_program() {
    let folder = tempfile::tempdir().unwrap();
    let ignoring = scripted(folder.path(), "trap '' INT QUIT HUP\nexec SANDBOX \"$@\"");
    let code =
        "import signal as s\nprint([s.getsignal(n) == s.SIG_IGN for n in (s.SIGINT, s.SIGQUIT, s.SIGHUP)])";
    let ran = ignoring.run(&job(code, limits()), |_, _| true).await.unwrap();
    assert_eq!(ran.runs[0].stdout, "[False, False, False]\n", "{ran:?}");
}

#[tokio::test]
async fn a_program_runs_and_is_heard() {
    let ran = run("import sys\nprint(input() + '!')\nprint('aside', file=sys.stderr)\nsys.exit(3)").await;
    assert_eq!((ran.end, ran.stdout.as_str(), ran.stderr.as_str()), (End::Exit(3), "in!\n", "aside\n"));
    let ran = run("import os\nos.abort()").await;
    assert_eq!(ran.end, End::Signal(6));
    // What most programs need is there.
    let ran = run("import json, random, threading, subprocess, asyncio, tempfile\n\
         t = threading.Thread(target=lambda: print(1)); t.start(); t.join()\n\
         print(subprocess.run(['/bin/echo', '2'], capture_output=True, text=True).stdout.strip())\n\
         async def three(): print(3)\nasyncio.run(three())\n\
         open('file', 'w').write('4'); print(open('file').read()); print(tempfile.mkdtemp()[:5])")
    .await;
    assert_eq!((ran.end, ran.stdout.as_str()), (End::Exit(0), "1\n2\n3\n4\n/tmp/\n"), "{ran:?}");
}

#[tokio::test]
async fn there_is_no_network() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok(), "it is there for others");
    for line in [
        format!("socket.create_connection(('127.0.0.1', {port}), 2)"),
        "socket.create_connection(('1.1.1.1', 53), 2)".to_owned(),
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)".to_owned(),
        "socket.socket(socket.AF_UNIX)".to_owned(),
        "socket.socketpair(socket.AF_INET)".to_owned(),
    ] {
        assert!(tried(&line).await.starts_with("OSError"), "{line}");
    }
}

#[tokio::test]
async fn nothing_else_is_there_to_read() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "secret").unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let home = std::env::var("HOME").unwrap();
    for path in [
        secret.to_str().unwrap(),
        "/etc/shadow",
        "/etc/passwd",
        "/proc/self/environ",
        "/proc/1/environ",
        "/sys/kernel/notes",
        "/dev/mem",
        &home,
        env!("CARGO_MANIFEST_DIR"),
    ] {
        let said = tried(&format!("os.stat({path:?})")).await;
        assert!(
            said.starts_with("FileNotFoundError") || said.starts_with("PermissionError"),
            "{path}: {said}"
        );
    }
    // A symlink to it leads nowhere, from inside.
    let said = tried(&format!("os.symlink({secret:?}, 'link'); open('link').read()")).await;
    assert!(said.starts_with("FileNotFoundError"), "{said}");
    let said = tried("os.listdir('/')").await;
    assert!(said.starts_with("PermissionError"), "{said}");
    let ran = run("import os\nprint(sorted(os.environ), os.getcwd(), os.getuid())").await;
    let known = "['HOME', 'LANG', 'MALLOC_ARENA_MAX', 'OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'PATH', 'PYTHONHASHSEED', 'TMPDIR']";
    assert_eq!(ran.stdout.trim(), format!("{known} /tmp/0 1000"));
    // No file of the sandbox's own is open but the three.
    let ran = run("import os\nopen_ = []\nfor fd in range(256):\n    try: os.fstat(fd); open_.append(fd)\n    except OSError: pass\nprint(open_)").await;
    assert_eq!(ran.stdout.trim(), "[0, 1, 2]");
}

#[tokio::test]
async fn nothing_else_is_there_to_write() {
    for line in [
        "open('/usr/planted', 'w')",
        "open('/planted', 'w')",
        "open('/bin/sh', 'r+b')",
        "open('/sandbox', 'r+b')",
        "os.chmod('/usr/bin/python3', 0o777)",
        "os.remove('/etc/ld.so.cache')",
        "os.mkdir('/dev/planted')",
        "os.rename('/tmp', '/planted')",
        "open('/tmp/planted', 'w')",
        "os.mkdir('/tmp/1')",
        "os.symlink('/usr', 'up'); open('up/planted', 'w')",
        "open('../../usr/planted', 'w')",
        "os.link('/usr/bin/python3', 'python'); open('python', 'r+b')",
    ] {
        let said = tried(line).await;
        assert!(said.starts_with("OSError") || said.starts_with("PermissionError"), "{line}: {said}");
    }
    assert!(!Path::new("/usr/planted").exists() && !Path::new("/planted").exists());
}

#[tokio::test]
async fn the_kernel_does_not_do_what_programs_do_not_need() {
    // By number, as the libraries might stop some of them: 101 ptrace, 165 mount, 155 pivot_root,
    // 161 chroot, 272 unshare, 308 setns, 298 perf_event_open, 321 bpf, 250 keyctl, 425
    // io_uring_setup, 319 memfd_create, 310 process_vm_readv, 323 userfaultfd, 435 clone3, 304
    // open_by_handle_at, 133 mknod, 29 shmget, 105 setuid, 117 setresuid, 160 setrlimit, 0x40000000
    // + 39 getpid as x32 programs call it.
    let calls = [
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
        319,
        310,
        323,
        435,
        304,
        133,
        29,
        105,
        117,
        160,
        0x4000_0000 + 39,
    ];
    for call in calls {
        let line = format!(
            "libc = ctypes.CDLL(None, use_errno=True); r = libc.syscall({call}, 0, 0, 0, 0, 0); assert r == -1 and ctypes.get_errno() == 38, (r, ctypes.get_errno())"
        );
        assert_eq!(tried(&line).await, "ok", "call {call}");
    }
    // clone, but into a new namespace of users.
    let line = "libc = ctypes.CDLL(None, use_errno=True); r = libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0); assert r == -1 and ctypes.get_errno() == 38";
    assert_eq!(tried(line).await, "ok");
}

#[tokio::test]
async fn nobody_else_is_there_to_kill() {
    let ours = std::process::id();
    let said = tried(&format!("os.kill({ours}, 0)")).await;
    assert!(said.starts_with("ProcessLookupError") || said.starts_with("PermissionError"), "{said}");
    // The first process within takes no signal from there, and there is no other.
    let ran = run("import os, signal\nos.kill(1, signal.SIGKILL)\nos.kill(os.getppid(), signal.SIGSTOP)\nprint(os.getpid() < 10, os.getppid())").await;
    assert_eq!((ran.end, ran.stdout.trim()), (End::Exit(0), "True 1"), "{ran:?}");
    let ran =
        run("import os, signal\ntry: os.kill(-1, signal.SIGKILL)\nexcept ProcessLookupError: print('on')")
            .await;
    assert_eq!((ran.end, ran.stdout.trim()), (End::Exit(0), "on"), "{ran:?}");
}

#[tokio::test]
async fn an_endless_loop_ends() {
    let began = Instant::now();
    let ran = run_in("while True: pass", Limits { wall_ms: 700, ..limits() }).await;
    assert_eq!(ran.end, End::Wall, "{ran:?}");
    let ran = run_in("import time\ntime.sleep(1000)", Limits { wall_ms: 300, ..limits() }).await;
    assert_eq!(ran.end, End::Wall, "{ran:?}");
    let ran = run_in("while True: pass", Limits { cpu_ms: 1_000, ..limits() }).await;
    assert_eq!(ran.end, End::Cpu, "{ran:?}");
    // One that does not hear it.
    let deaf = "import signal\nfor s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n    except OSError: pass\nwhile True: pass";
    let ran = run_in(deaf, Limits { cpu_ms: 1_000, ..limits() }).await;
    assert_eq!(ran.end, End::Signal(9), "{ran:?}");
    assert!(began.elapsed() < PATIENCE);
}

#[tokio::test]
async fn endless_output_ends() {
    for stream in ["stdout", "stderr"] {
        let code = format!("import sys\nwhile True: sys.{stream}.write('x' * 65536)");
        let ran = run(&code).await;
        assert_eq!(ran.end, End::Output, "{:?}", ran.end);
        assert!(ran.stdout.len() as u64 <= limits().output_bytes + 64 * 1024);
    }
    let ran = run("print('x' * 1000000)").await;
    assert_eq!((ran.end, ran.stdout.len()), (End::Exit(0), 1_000_001));
}

#[tokio::test]
async fn a_fork_bomb_stays_small() {
    let bomb = "import os\nn = 0\nwhile True:\n    try:\n        if os.fork() == 0: n = 0\n        else: n += 1\n    except OSError: pass";
    // What the kernel has for its forks counts as its memory: ten times what its processes have, at times more.
    let ran = run_in(bomb, Limits { wall_ms: 1_500, memory_bytes: 1024 * MIB, ..limits() }).await;
    assert_eq!(ran.end, End::Wall, "{ran:?}");
    let count = "import os, time\nn = 0\ntry:\n    while True:\n        if os.fork() == 0: time.sleep(1000)\n        n += 1\nexcept OSError: print(n)";
    let ran = run(count).await;
    assert_eq!((ran.end, ran.stdout.trim()), (End::Exit(0), "15"), "{ran:?}");
    let threads = "import threading, time\nn = 0\ntry:\n    while True:\n        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start(); n += 1\nexcept RuntimeError: print(n)";
    let ran = run(threads).await;
    assert_eq!((ran.end, ran.stdout.trim()), (End::Exit(0), "15"), "{ran:?}");
}

#[tokio::test]
async fn a_flood_of_memory_stays_small() {
    let ran = run("x = bytearray(1 << 30)").await;
    assert!(ran.end == End::Exit(1) && ran.stderr.contains("MemoryError"), "{ran:?}");
    // Each process within its bounds, all of them far above.
    let many = "import os, time\nfor _ in range(10):\n    if os.fork() == 0: break\nx = bytearray(b'x') * (150 << 20)\ntime.sleep(1000)";
    let ran = run(many).await;
    assert_eq!(ran.end, End::Memory, "{ran:?}");
    // Shared mappings, each within its process's bounds: touched by a process that ends, they stay.
    for kind in ["mmap.mmap(-1, 100 << 20)", "mmap.mmap(os.open('/dev/zero', os.O_RDWR), 100 << 20)"] {
        let shared = format!(
            "import mmap, os, time\nfor _ in range(5):\n    m = {kind}\n    if os.fork() == 0:\n        [m.write(b'x' * (1 << 20)) for _ in range(100)]; os._exit(0)\n    os.wait()\n    if os.fork(): time.sleep(1000)\n    del m\ntime.sleep(1000)"
        );
        let ran = run(&shared).await;
        assert_eq!(ran.end, End::Memory, "{kind}: {ran:?}");
    }
    // One mapping that several use counts once.
    let once = "import mmap, os\nm = mmap.mmap(-1, 100 << 20)\nfor _ in range(5):\n    if os.fork() == 0:\n        m.seek(0); [m.write(b'x' * (1 << 20)) for _ in range(100)]; os._exit(0)\nfor _ in range(5): os.wait()\nprint(m[0])";
    let ran = run(once).await;
    assert_eq!((ran.end, ran.stdout.trim()), (End::Exit(0), "120"), "{ran:?}");
}

#[tokio::test]
async fn a_flood_of_files_stays_small() {
    let one = "f = open('f', 'wb')\nn = 0\ntry:\n    while True: n += f.write(b'x' * 65536); f.flush()\nexcept OSError as error: print(error.errno, n <= 8 << 20)";
    let ran = run(one).await;
    assert!(ran.stdout.trim() == "28 True" || ran.stdout.trim() == "27 True", "{ran:?}");
    let many = "import os\nn = 0\ntry:\n    while True: os.write(os.open(str(n), os.O_CREAT | os.O_WRONLY), b'x' * 4096); os.close(3); n += 1\nexcept OSError as error: print(error.errno, n <= 2048)";
    let ran = run(many).await;
    assert_eq!(ran.stdout.trim(), "28 True", "{ran:?}");
    let empty = "n = 0\ntry:\n    while True: open(str(n), 'w').close(); n += 1\nexcept OSError as error: print(error.errno, n <= 16384)";
    let ran = run(empty).await;
    assert_eq!(ran.stdout.trim(), "28 True", "{ran:?}");
}

#[tokio::test]
async fn a_run_that_fills_its_folder_leaves_the_next_one_its_own() {
    let fill = "import os\nos.makedirs('a/b')\nopen('a/b/c', 'w')\nos.chmod('a/b', 0)\nos.chmod('a', 0)\nopen('f', 'w').write('x' * (9 << 20))";
    let mut two = job(fill, limits());
    two.runs.push(two.runs[0].clone());
    let runs = results(&two).await.unwrap().runs;
    assert_eq!(runs.len(), 2);
    for ran in runs {
        assert!(ran.end == End::Exit(1) && ran.stderr.contains("No space left"), "{ran:?}");
    }
}

#[tokio::test]
async fn what_a_run_leaves_behind_is_its_own_and_no_failure() {
    // Each would keep the folder from being cleared or the files from being written, and stop the
    // sandbox itself.
    for hostile in [
        "import os\nos.chmod('.', 0)",
        "import os\nos.remove('main.py')\nos.mkdir('main.py')\nos.mkdir('main.py/x')",
        "import os\nos.remove('main.py')\nos.symlink('/no/such/place', 'main.py')\nos.symlink('x', '.input')",
        "import os\ntry:\n    while True: os.write(os.open('full', os.O_CREAT | os.O_WRONLY | os.O_APPEND), b'x' * 65536); os.close(3)\nexcept OSError: pass",
        "n = 0\ntry:\n    while True: open(str(n), 'w').close(); n += 1\nexcept OSError: pass",
        "import os\nfor _ in range(3000):\n    os.mkdir('d' * 50)\n    os.chdir('d' * 50)\nos.chmod('.', 0)",
    ] {
        let mut two = job(hostile, limits());
        two.files.push(File {
            name: "look.py".to_owned(),
            text: "import os\nprint(sorted(os.listdir('.')), sorted(os.listdir('/tmp')))".to_owned(),
        });
        let command = ["/usr/bin/python3", "-I", "look.py"].map(str::to_owned).to_vec();
        two.runs.push(Run { command, stdin: "in".to_owned() });
        let runs = results(&two).await.unwrap().runs;
        assert_eq!(
            runs.iter().map(|ran| ran.end).collect::<Vec<_>>(),
            [End::Exit(0); 2],
            "{hostile}: {runs:?}"
        );
        assert_eq!(runs[1].stdout.trim(), "['look.py', 'main.py'] ['0']", "{hostile}");
    }
}

#[tokio::test]
async fn nothing_is_planted_for_the_next_run() {
    let plant = "import os\nfor place in ('/tmp/1', '/tmp/0', '.'):\n    try:\n        os.makedirs(place, exist_ok=True)\n        open(place + '/json.py', 'w').write('raise SystemExit(7)')\n    except OSError: pass";
    let mut two = job(plant, limits());
    two.files.push(File {
        name: "next.py".to_owned(),
        text: "import sys\nsys.path.insert(0, '.')\nimport json\nprint(json.dumps(1))".to_owned(),
    });
    let command = ["/usr/bin/python3", "-I", "next.py"].map(str::to_owned).to_vec();
    two.runs.push(Run { command, stdin: String::new() });
    let runs = results(&two).await.unwrap().runs;
    assert_eq!((runs[1].end, runs[1].stdout.trim()), (End::Exit(0), "1"), "{runs:?}");
}

#[tokio::test]
async fn limits_are_changed_for_oneself_alone() {
    let own = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))";
    assert_eq!(tried(own).await, "ok");
    for other in [
        "resource.prlimit(1, resource.RLIMIT_CPU, (0, 0))",
        "resource.prlimit(os.getppid(), resource.RLIMIT_FSIZE, (0, 0))",
    ] {
        assert_eq!(tried(&format!("import resource; {other}")).await, "OSError 38", "{other}");
    }
}

#[tokio::test]
async fn a_program_that_ends_its_sandbox_has_a_result() {
    // A stand-in for whatever hole is left: the sandbox tells that the program runs, and then
    // nothing more.
    let folder = tempfile::tempdir().unwrap();
    let dies = scripted(folder.path(), "read job; echo '{\"ready\":[]}'; echo '\"started\"'");
    let results = dies.run(&job("", limits()), |_, _| true).await.unwrap();
    assert_eq!(results.runs[0].end, End::Broke, "{results:?}");
    let babbles = scripted(
        folder.path(),
        "read job; echo '{\"ready\":[]}'; echo '\"started\"'; exec yes | tr -d '\\n'",
    );
    let results = babbles.run(&job("", limits()), |_, _| true).await.unwrap();
    assert_eq!(results.runs[0].end, End::Output, "{results:?}");
    // Before that it is the machine's failure.
    let early = scripted(folder.path(), "read job; echo '{\"ready\":[]}'");
    let broken = early.run(&job("", limits()), |_, _| true).await;
    assert!(matches!(broken, Err(SandboxError::Broken(_))), "{broken:?}");
}

#[tokio::test]
async fn nothing_is_left_behind() {
    // A word by which a process is found from outside.
    let word = format!("left-behind-{}", std::process::id());
    let code = format!(
        "import os, sys\nfor _ in range(3):\n    if os.fork() == 0:\n        os.setsid()\n        os.execv('/bin/sleep', [{word:?}, '1000'])\nprint('gone')"
    );
    let mut two = job(&code, limits());
    let look = "import os\nprint(sorted(os.listdir('/tmp/0')))\ntry: os.kill(-1, 0); print('somebody')\nexcept ProcessLookupError: print('nobody')";
    two.files.push(File { name: "look.py".to_owned(), text: look.to_owned() });
    let command = ["/usr/bin/python3", "-I", "look.py"].map(str::to_owned).to_vec();
    two.runs.push(Run { command, stdin: String::new() });
    let runs = results(&two).await.unwrap().runs;
    assert_eq!((runs[0].end, runs[0].stdout.trim()), (End::Exit(0), "gone"), "{runs:?}");
    assert!(runs[0].wall_ms < 15_000, "it does not wait for them: {runs:?}");
    // The second run finds neither the files nor the processes of the first.
    assert_eq!(runs[1].stdout.trim(), "['look.py', 'main.py']\nnobody", "{runs:?}");
    assert!(!alive(&word));
    // Dropped in the middle, the whole sandbox goes.
    let word = format!("dropped-{}", std::process::id());
    let code = format!("import os\nos.execv('/bin/sleep', [{word:?}, '1000'])");
    let long = job(&code, limits());
    let asked = tokio::spawn(async move { results(&long).await });
    until(|| alive(&word)).await;
    asked.abort();
    until(|| !alive(&word)).await;
}

/// Whether a process of the machine has this word on its command line.
fn alive(word: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .any(|line| line.starts_with(word.as_bytes()))
}

async fn until(mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
}

#[tokio::test]
async fn where_there_is_no_sandbox_there_is_no_result() {
    let missing = Sandbox::at("/no/such/program", 1).run(&job("", limits()), |_, _| true).await;
    assert!(matches!(missing, Err(SandboxError::Start { .. })), "{missing:?}");
    let mut nowhere = job("", limits());
    nowhere.read = vec!["/no/such/folder".into()];
    let refused = results(&nowhere).await.unwrap_err();
    assert!(matches!(&refused, SandboxError::Refused(why) if why.contains("/no/such/folder")), "{refused}");
    let mut unknown = job("", limits());
    unknown.runs[0].command = vec!["/usr/bin/no-such-python".to_owned()];
    let refused = results(&unknown).await.unwrap_err();
    assert!(matches!(&refused, SandboxError::Refused(why) if why.contains("no-such-python")), "{refused}");
    // Whatever it is that runs under this name, it is no sandbox.
    let broken = Sandbox::at("/bin/true", 1).run(&job("", limits()), |_, _| true).await;
    assert!(matches!(broken, Err(SandboxError::Broken(_))), "{broken:?}");
    let broken = Sandbox::at("/bin/cat", 1).run(&job("", limits()), |_, _| true).await;
    assert!(matches!(broken, Err(SandboxError::Broken(_))), "{broken:?}");
}

/// A sandbox that a script starts; on a machine that lacks something, the script takes it away first.
fn scripted(folder: &Path, shell: &str) -> Sandbox {
    let (draft, script) = (folder.join("draft"), folder.join("start"));
    let text = format!("#!/bin/sh\nexport PATH=/usr/sbin:/usr/bin:/sbin:/bin\n{shell}\n");
    std::fs::write(&draft, text.replace("SANDBOX", env!("CARGO_BIN_EXE_millrace-sandbox"))).unwrap();
    // By another process: a file that this one wrote is busy while a fork of another thread has it open, too.
    assert!(Command::new("install").arg("-m755").args([&draft, &script]).status().unwrap().success());
    Sandbox::at(script, 1)
}

#[tokio::test]
async fn a_machine_that_forbids_namespaces_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let none = "exec unshare -Ur sh -c 'echo 0 > /proc/sys/user/max_user_namespaces && exec SANDBOX'";
    let refused = scripted(folder.path(), none).run(&job("", limits()), |_, _| true).await.unwrap_err();
    let said = refused.to_string();
    assert!(
        matches!(refused, SandboxError::Refused(_)) && said.contains("user.max_user_namespaces"),
        "{said}"
    );
}

#[tokio::test]
async fn a_missing_wall_is_refused_or_said() {
    // A filter under which the kernel does not know calls 444 to 446, Landlock's.
    let folder = tempfile::tempdir().unwrap();
    let filter = folder.path().join("filter.py");
    let code = "import ctypes, os, struct, sys\n\
        code = [(0x20, 0, 0, 0), (0x35, 0, 2, 444), (0x35, 1, 0, 447), (0x06, 0, 0, 0x50000 | 38), (0x06, 0, 0, 0x7fff0000)]\n\
        text = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *line) for line in code))\n\
        program = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', len(code), ctypes.addressof(text)))\n\
        libc = ctypes.CDLL(None)\n\
        libc.prctl.argtypes = [ctypes.c_int] + 4 * [ctypes.c_ulong]\n\
        assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.addressof(program), 0, 0) == 0\n\
        os.execv(sys.argv[1], sys.argv[1:])\n";
    std::fs::write(&filter, code).unwrap();
    let without = scripted(folder.path(), &format!("exec python3 {} SANDBOX", filter.display()));
    let mut job = job("open('/usr/planted', 'w')", limits());
    let refused = without.run(&job, |_, _| true).await.unwrap_err();
    assert!(matches!(&refused, SandboxError::Refused(why) if why.contains("Landlock")), "{refused}");
    job.may_lack = vec![Protection::Landlock];
    let results = without.run(&job, |_, _| true).await.unwrap();
    assert_eq!(results.lacks, [Protection::Landlock], "{results:?}");
    // The mounts still hold.
    assert_eq!(results.runs[0].end, End::Exit(1), "{results:?}");
    assert!(results.runs[0].stderr.contains("Read-only file system"), "{results:?}");
}
