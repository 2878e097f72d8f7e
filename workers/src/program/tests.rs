use std::path::Path;

use millrace_schemas::env_step::Settings;
use tempfile::TempDir;
use tokio::time::sleep;

use super::*;
use crate::runtime::within;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// A program whose one reward, `x`, does `line` for each `$question`; `$n` is the process's own number
/// and `$said` a file for marks.
async fn start(line: &str) -> (Program, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "n=$$; said={}\necho '{{\"millrace\": 1, \"rewards\": [\"x\"]}}'\nwhile read -r question; do {line}; done\n",
        folder.path().join("said").display()
    );
    let path = folder.path().join("program.sh");
    std::fs::write(&path, script).unwrap();
    let command = format!("sh {}", path.display());
    (timeout(PATIENCE, Program::start(&command, 1)).await.unwrap().unwrap(), folder)
}

async fn ask(program: &Program) -> Result<Answer, ProgramError> {
    let (reward, settings) = (&"x".parse::<PoolName>().unwrap(), &Settings::new());
    let request = ProgramRequest::Score {
        reward,
        settings,
        turns: &[],
        success: true,
        conversation: &[],
        row: &Settings::new(),
    };
    timeout(PATIENCE, program.ask(&request)).await.unwrap()
}

/// The score, which is the number of the process.
async fn score(program: &Program) -> f64 {
    match ask(program).await {
        Ok(Answer::Score(score)) => score,
        other => panic!("{other:?}"),
    }
}

async fn written(path: &Path) {
    let written = async {
        while !path.exists() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, written).await.unwrap();
}

#[tokio::test]
async fn a_program_that_answers_twice_is_replaced() {
    // Both lines are there at once.
    let (program, _folder) = start(r#"printf '{"score": %s}\n{"score": 0}\n' $n"#).await;
    let first = score(&program).await;
    let second = score(&program).await;
    assert!(first > 0.0 && second > 0.0 && first != second, "{first} {second}");
    // The second line comes later, while the copy is idle.
    let (program, folder) =
        start(r#"printf '{"score": %s}\n' $n; (sleep 0.1; printf '{"score": 0}\n'; echo > $said)"#).await;
    let first = score(&program).await;
    written(&folder.path().join("said")).await;
    let second = score(&program).await;
    assert!(first > 0.0 && second > 0.0 && first != second, "{first} {second}");
    // One that says a line each time is kept.
    let (program, _folder) = start(r#"printf '{"score": %s}\n' $n"#).await;
    assert_eq!(score(&program).await, score(&program).await);
}

#[tokio::test]
async fn a_request_that_waits_for_a_copy_uses_up_no_time() {
    let (program, folder) = start(
        r#"printf '\n' > ${said}$n; until [ -e $said ]; do sleep 0.01; done; printf '{"score": %s}\n' $n"#,
    )
    .await;
    let limit = Duration::from_secs(1);
    let first = within(Duration::from_secs(60), ask(&program));
    let second = within(limit, ask(&program));
    let mut both = std::pin::pin!(futures::future::join(first, second));
    // The second waits for the only copy for longer than it may take itself.
    assert!(timeout(limit * 3 / 2, &mut both).await.is_err());
    std::fs::write(folder.path().join("said"), "").unwrap();
    let (first, second) = timeout(PATIENCE, both).await.unwrap();
    assert!(matches!(first, Some(Ok(Answer::Score(_)))), "{first:?}");
    assert_eq!(first, second, "by the same copy");
    // At a copy its time runs.
    std::fs::remove_file(folder.path().join("said")).unwrap();
    assert_eq!(within(Duration::from_millis(300), ask(&program)).await, None);
}

#[tokio::test]
async fn what_was_said_unasked_is_told() {
    let mut copy = Process::start(r#"printf '{"millrace": 1}\n{"score": 0.5}\n{"score"'; cat"#).unwrap();
    assert_eq!(timeout(PATIENCE, copy.hello()).await.unwrap().unwrap().batch, 1);
    assert_eq!(copy.unasked().await.as_deref(), Some(r#"{"score": 0.5}"#));
}

#[tokio::test]
async fn an_answer_that_repeats_its_requests_number_is_never_anothers() {
    // A line for the request before comes first, and is not taken for this one's.
    let (program, _folder) = start(
        "number=${question#*\\\"request\\\":}; number=${number%%,*}; \
         printf '{\"score\": 1, \"request\": %s}\\n' $((number - number % 2))",
    )
    .await;
    assert_eq!(ask(&program).await, Ok(Answer::Score(1.0)));
    match ask(&program).await {
        Err(ProgramError::Unreadable { line, reason }) => {
            assert_eq!(line, r#"{"score": 1, "request": 0}"#);
            assert_eq!(reason, "request=0, and the next to be answered is request=1");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(ask(&program).await, Ok(Answer::Score(1.0)));
}
