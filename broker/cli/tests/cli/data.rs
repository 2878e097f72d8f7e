//! Files of rows: what is wrong with one is said before anything starts, and a run takes along what
//! is right.

use std::path::{Path, PathBuf};

use millrace_queue::{JetStream, JetStreamOptions, RequestError, request};
use millrace_schemas::BlobRef;
use millrace_schemas::submit::from_toml;

use super::support::{Coordinated, PATIENCE, run, stderr, stdout};

/// A run file beside a file of rows, in `folder`.
fn written(folder: &Path, rows: &[u8], more: &str) -> PathBuf {
    std::fs::write(folder.join("rows.jsonl"), rows).unwrap();
    let file = folder.join("run.toml");
    let text = format!(
        r#"
        name = "asks"
        steps = 1
        model = {{ kind = "hugging_face", path = "nowhere" }}
        environment = {{ name = "dataset", path = "rows.jsonl", check = "number", held_out = 0.5{more} }}
        algorithm = {{ learning_rate = 1e-5 }}
        rollout = {{ max_new_tokens = 8 }}
        evaluate = {{ prompts = 2 }}
        "#
    );
    std::fs::write(&file, text).unwrap();
    file
}

fn rows(count: usize) -> String {
    (0..count).map(|i| format!("{{\"prompt\": \"What is {i} + 1?\", \"answer\": {}}}\n", i + 1)).collect()
}

#[tokio::test]
async fn what_is_wrong_with_a_row_is_said_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("run");
    for (row, words) in [
        (&b"{\"prompt\": \"a\"}"[..], "line=5: field=\"answer\" is not there"),
        (
            b"{\"prompt\": \"a\", \"answer\": \"four\"}",
            "line=5: field=\"answer\" is \"four\", no whole number",
        ),
        (b"{\"prompt\": 7, \"answer\": 4}", "line=5: field=\"prompt\" is a number"),
        (b"{\"prompt\": \"a\", \"answer\": 4", "line=5: it is no JSON object"),
        (b"{\"prompt\": \"\xe9\", \"answer\": 4}", "line=5: its byte=13 is no UTF-8"),
        (b" ", "line=5: it is empty"),
    ] {
        let file = written(folder.path(), &[rows(4).as_bytes(), row, b"\n"].concat(), "");
        let file = file.to_string_lossy();
        for command in [vec!["up", &file, "--dir", root.to_str().unwrap()], vec!["submit", &file]] {
            let output = run(&command).await;
            assert!(!output.status.success(), "{}", stdout(&output));
            let said = stderr(&output);
            assert!(said.contains("rows path = \"rows.jsonl\"") && said.contains(words), "{said}");
        }
        assert!(!root.exists(), "something was begun");
    }
    let few = written(folder.path(), rows(2).as_bytes(), "");
    let output = run(&["submit", &few.to_string_lossy()]).await;
    assert!(stderr(&output).contains("only rows=1 are held out"), "{}", stderr(&output));
    let empty = written(folder.path(), b"", "");
    let output = run(&["submit", &empty.to_string_lossy()]).await;
    assert!(stderr(&output).contains("it has no rows"), "{}", stderr(&output));
    std::fs::remove_file(folder.path().join("rows.jsonl")).unwrap();
    let output = run(&["submit", &empty.to_string_lossy()]).await;
    assert!(stderr(&output).contains("failed to read path="), "{}", stderr(&output));
}

#[tokio::test]
async fn the_rows_are_handed_in_with_the_run() {
    let place = Coordinated::start().await;
    let folder = tempfile::tempdir().unwrap();
    let text = rows(8);
    let file = written(folder.path(), text.as_bytes(), "");

    // A client that submits no rows gets the remedy.
    let bare = from_toml(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let queue = JetStream::connect(&place.url, "test", JetStreamOptions::default()).await.unwrap();
    let body = serde_json::to_vec(&bare).unwrap();
    let Err(RequestError::Api(error)) = request(&queue, "submit", body.into(), PATIENCE).await else {
        panic!("a run was taken on whose rows nobody has");
    };
    assert_eq!((error.code, error.fields[0].field.as_str()), (400, "environment.content"));

    let output = place.run(&["submit", &file.to_string_lossy()]).await;
    assert!(output.status.success(), "{}", stderr(&output));
    let blob = BlobRef::of(text.as_bytes());
    let stored = Path::new(&place.objects)
        .join(millrace_schemas::blob::paths::blob(&"asks".parse().unwrap(), &blob.sha256));
    assert_eq!(std::fs::read_to_string(stored).unwrap(), text, "the very bytes of the file");

    // A run file that pins its rows gets no others.
    let (sha, bytes) = (blob.sha256, blob.bytes);
    let pinned = format!(
        ", content = {{ blob = {{ sha256 = \"{sha}\", bytes = {bytes} }}, train = 4, held_out = 4 }}"
    );
    let file = written(folder.path(), rows(9).as_bytes(), &pinned);
    let output = place.run(&["submit", &file.to_string_lossy()]).await;
    assert!(stderr(&output).contains("restore the file"), "{}", stderr(&output));
    let file = written(folder.path(), text.as_bytes(), &pinned);
    let output = place.run(&["submit", &file.to_string_lossy()]).await;
    assert!(stderr(&output).contains("exists"), "{}", stderr(&output));
}

#[tokio::test]
async fn rows_of_parquet_are_those_of_the_same_file_as_jsonl() {
    let place = Coordinated::start().await;
    let folder = tempfile::tempdir().unwrap();
    // Made by pyarrow 26: messages as lists of structs, zstd, a column with nulls.
    let parquet = include_bytes!("rows.parquet");
    let row = |i: usize| {
        let level = if i.is_multiple_of(2) { format!(",\"level\":{i}") } else { String::new() };
        format!(
            "{{\"answer\":\"{}\",\"extra\":{{\"tags\":[\"a\",\"{i}\"]}}{level},\"prompt\":[{{\"content\":\"What is {i} + 1? ½\",\
             \"role\":\"user\"}}]}}\n",
            i + 1
        )
    };
    let text: String = (0..8).map(row).collect();
    let file = written(folder.path(), parquet, "");
    let output = place.run(&["submit", &file.to_string_lossy()]).await;
    assert!(output.status.success(), "{}", stderr(&output));
    let stored = Path::new(&place.objects).join(millrace_schemas::blob::paths::blob(
        &"asks".parse().unwrap(),
        &BlobRef::of(text.as_bytes()).sha256,
    ));
    assert_eq!(std::fs::read_to_string(stored).unwrap(), text);

    for damaged in [&parquet[..parquet.len() / 2], &[&parquet[..64], &[0xff; 64], &parquet[128..]].concat()] {
        let file = written(folder.path(), damaged, "");
        let output = run(&["submit", &file.to_string_lossy()]).await;
        let said = stderr(&output);
        assert!(!output.status.success(), "{said}");
        assert!(said.contains("rows.jsonl") && said.contains("not valid Parquet"), "{said}");
    }
}
