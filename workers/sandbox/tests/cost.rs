//! What a call costs. `cargo test … --test cost -- --nocapture` shows it.

use std::process::Command;
use std::time::Instant;

use millrace_sandbox::{End, Job, Limits, Run, Sandbox};

const CALLS: usize = 15;

#[tokio::test]
async fn a_call_costs_milliseconds() {
    let sandbox = Sandbox::at(env!("CARGO_BIN_EXE_millrace-sandbox"), 1);
    for command in [vec!["/bin/true"], vec!["/usr/bin/python3", "-I", "-c", "pass"]] {
        let (mut within, mut without) = (Vec::new(), Vec::new());
        let run =
            Run { command: command.iter().map(|&word| word.to_owned()).collect(), stdin: String::new() };
        let job =
            Job { files: vec![], runs: vec![run], limits: Limits::default(), read: vec![], may_lack: vec![] };
        for _ in 0..CALLS {
            let began = Instant::now();
            let results = sandbox.run(&job, |_, _| true).await.unwrap();
            assert_eq!(results.runs[0].end, End::Exit(0), "{results:?}");
            within.push(began.elapsed());
            let began = Instant::now();
            assert!(Command::new(command[0]).args(&command[1..]).env_clear().status().unwrap().success());
            without.push(began.elapsed());
        }
        within.sort();
        without.sort();
        let (within, without) = (within[CALLS / 2], without[CALLS / 2]);
        println!("{}: {within:?} in the sandbox, {without:?} without, median of {CALLS}", command[0]);
        assert!(within.as_millis() < 2_000, "{within:?}");
    }
}
