//! What becomes of the processes of a command that loads weights.

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{OpenOptions, Receiver, Sender};

use super::*;

/// For what takes milliseconds.
const SOON: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(600);

/// A folder with a pipe in it, whose reader hears the end of the last process that has it open.
struct Pipe {
    folder: tempfile::TempDir,
    reader: Receiver,
    writer: Sender,
}

impl Pipe {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("pipe");
        mkfifo(&at, Mode::S_IRWXU).unwrap();
        let reader = OpenOptions::new().open_receiver(&at).unwrap();
        let writer = OpenOptions::new().open_sender(&at).unwrap();
        Self { folder, reader, writer }
    }

    async fn hear(&mut self) -> u8 {
        tokio::time::timeout(SOON, self.reader.read_u8()).await.unwrap().unwrap()
    }

    /// Waits for the end of all that the command started.
    async fn all_ended(self) {
        let Self { mut reader, writer, .. } = self;
        drop(writer);
        let end = tokio::time::timeout(SOON, reader.read_u8()).await.expect("a process goes on");
        assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    }
}

/// A converter below the shell.
const SLOW: &str = r#"(echo; exec sleep 600) > "$MILLRACE_WEIGHTS/pipe" & wait"#;

#[tokio::test]
async fn a_command_that_takes_too_long_ends_with_all_that_it_started() {
    let mut pipe = Pipe::new();
    let folder = pipe.folder.path().to_owned();
    let ran = tokio::spawn(async move { run(SLOW, &folder, "v1", LIMIT).await });
    pipe.hear().await;
    tokio::time::pause();
    tokio::time::advance(LIMIT).await;
    let error = ran.await.unwrap().unwrap_err();
    tokio::time::resume();
    assert!(error.to_string().contains("took longer than 600s"), "{error}");
    pipe.all_ended().await;
}

#[tokio::test]
async fn a_command_that_nobody_waits_for_ends_with_all_that_it_started() {
    let mut pipe = Pipe::new();
    let folder = pipe.folder.path().to_owned();
    tokio::select! {
        ran = run(SLOW, &folder, "v1", LIMIT) => panic!("{ran:?}"),
        _ = pipe.hear() => {}
    }
    pipe.all_ended().await;
}

#[tokio::test]
async fn a_server_outlives_the_command_that_started_it() {
    let mut pipe = Pipe::new();
    let asks = pipe.folder.path().join("asks");
    mkfifo(&asks, Mode::S_IRWXU).unwrap();
    let mut asks = OpenOptions::new().read_write(true).open_sender(&asks).unwrap();
    // It answers with what it is asked, until nobody can ask any more.
    let command =
        r#"cat < "$MILLRACE_WEIGHTS/asks" > "$MILLRACE_WEIGHTS/pipe" & echo > "$MILLRACE_WEIGHTS/pipe""#;
    run(command, pipe.folder.path(), "v1", LIMIT).await.unwrap();
    assert_eq!(pipe.hear().await, b'\n');
    asks.write_u8(b'?').await.unwrap();
    assert_eq!(pipe.hear().await, b'?');
    drop(asks);
    pipe.all_ended().await;
}
