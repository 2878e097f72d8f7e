//! llama.cpp's own server, which loads each version by the command that ships.

use std::path::Path;
use std::process::Command;

use millrace_queue::testing::free_port;
use millrace_schemas::generate::Sampling;
use millrace_workers::Verdict;
use millrace_workers::policy::openai::Dialect::LlamaCpp;
use serde_json::Value;
use tempfile::TempDir;

use crate::openai::support::{
    Bench, Python, announce_with, asked, check_against_oracle, done, model, python, task, versions,
};

/// Where turns end; llama.cpp has no model without such a token.
const END: u32 = 2;

/// The server that the command starts.
struct LlamaServer {
    port: u16,
    folder: TempDir,
}

impl LlamaServer {
    fn new() -> Self {
        Self { port: free_port().unwrap(), folder: TempDir::new().unwrap() }
    }

    fn command(&self) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/examples/llama_cpp.py");
        let (python, folder) = (python().get_program().to_string_lossy().into_owned(), self.folder.path());
        format!(
            "{python} {} reload {} --port {} --threads 1 --context 512",
            script.display(),
            folder.display(),
            self.port
        )
    }

    fn pid(&self) -> Option<String> {
        std::fs::read_to_string(self.folder.path().join("pid")).ok()
    }

    fn kill(&self) {
        let pid = self.pid().expect("it was started");
        assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for LlamaServer {
    fn drop(&mut self) {
        if let Some(pid) = self.pid() {
            let _ = Command::new("kill").args(["-9", &pid]).status();
        }
    }
}

/// Announces a version whose turns end at [`END`].
async fn announce(bench: &Bench, version: u64) {
    let config = std::fs::read(model(version).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["eos_token_id"] = END.into();
    announce_with(&bench.broker, version, true, &[("config.json", config)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn llama_cpp_itself_samples_by_each_version() {
    let (oracle, server) = (Python::start(), LlamaServer::new());
    let at_the_server = |command: String| {
        Bench::with(&oracle, LlamaCpp, |settings| {
            settings.url = format!("http://127.0.0.1:{}", server.port);
            settings.reload = Some(command);
        })
    };
    let bench = at_the_server(server.command());
    let mut tokens = 0;
    for version in 1..=2 {
        announce(&bench, version).await;
        // More tokens than one piece of a turn has, several turns at once, and one that follows
        // from the weights alone.
        let mut tasks: Vec<_> = (0..6).map(|index| task(index, version, 100, Sampling::at(1.0))).collect();
        tasks.extend([task(6, version, 20, Sampling::at(0.5)), task(7, version, 20, Sampling::at(0.0))]);
        bench.insist(tasks[0].clone()).await;
        let running: Vec<_> = tasks.iter().map(|task| bench.spawn(task.clone())).collect();
        for (task, running) in tasks.iter().zip(running) {
            let turn = done(running.await.unwrap());
            assert_eq!(versions(&turn), [version], "{}", server.said());
            let ended = turn.tokens.last() == Some(&END);
            assert!(ended || turn.tokens.len() == asked(task).max_new_tokens as usize, "{turn:?}");
            check_against_oracle(&oracle, task, &turn);
            tokens += turn.tokens.len();
        }
    }
    assert!(tokens > 200, "only {tokens} tokens were looked at");
    // It is gone, and is restarted with the same version.
    server.kill();
    let ask = || task(8, 2, 30, Sampling::at(1.0));
    let (turn, said) = bench.insist(ask()).await;
    assert!(!said.is_empty(), "nobody noticed");
    check_against_oracle(&oracle, &ask(), &turn);
    // A command that only claims to have loaded the weights.
    let bench = at_the_server("true".to_owned());
    announce(&bench, 3).await;
    match bench.execute(task(9, 3, 5, Sampling::at(1.0))).await {
        Verdict::RetryAfter(_, reason) => assert!(reason.contains("v000002.gguf"), "{reason}"),
        other => panic!("it sampled with weights of another version: {other:?}"),
    }
}
