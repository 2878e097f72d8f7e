use std::collections::BTreeSet;

use bytes::Bytes;

use super::*;

fn spec(more: &str) -> DatasetSpec {
    toml::from_str(&format!("path = \"rows.jsonl\"\n{more}")).unwrap()
}

fn read(text: impl Into<Vec<u8>>, more: &str) -> Result<Rows, DatasetError> {
    Rows::read(Bytes::from(text.into()), &spec(more))
}

/// Rows whose prompts are numbers, each twice.
fn numbers(count: usize) -> String {
    (0..count).map(|i| format!("{{\"prompt\": \"{}\", \"answer\": {i}}}\n", i % (count / 2))).collect()
}

#[test]
fn what_is_wrong_is_named_by_line_and_field() {
    let good = "{\"prompt\": \"a\", \"answer\": \"1\"}\n";
    let long = format!("{{\"prompt\": \"{}\"}}", "x".repeat(crate::limits::MAX_ROW_BYTES));
    for (row, words) in [
        (
            "{\"answer\": \"1\"}",
            "field=\"prompt\" is not there, only answer; name the right one as environment.prompt",
        ),
        ("{}", "only nothing"),
        ("{\"prompt\": 4, \"answer\": \"1\"}", "field=\"prompt\" is a number; write text or a list"),
        ("{\"prompt\": null, \"answer\": \"1\"}", "field=\"prompt\" is null"),
        ("{\"prompt\": \" \", \"answer\": \"1\"}", "asks nothing"),
        ("{\"prompt\": [], \"answer\": \"1\"}", "does not end with a message of the user"),
        ("{\"prompt\": [{\"role\": \"assistant\", \"content\": \"a\"}], \"answer\": \"1\"}", "of the user"),
        (
            "{\"prompt\": [{\"role\": \"robot\", \"content\": \"a\"}], \"answer\": \"1\"}",
            "unknown variant `robot`",
        ),
        ("{\"prompt\": [\"a\"], \"answer\": \"1\"}", "no list of chat messages"),
        ("{\"prompt\": \"a\"}", "field=\"answer\" is not there"),
        ("{\"prompt\": \"a\", \"answer\": null}", "field=\"answer\" is null; write text, a number"),
        ("{\"prompt\": \"a\", \"answer\": [1]}", "field=\"answer\" is a list"),
        ("{\"prompt\": \"a\" \"answer\": \"1\"}", "no JSON object: expected `,` or `}` at column 16"),
        ("{\"prompt\": \"a\", ", "no JSON object: EOF"),
        ("[1]", "no JSON object"),
        ("", "it is empty; take it out"),
        (&long, "shorten the row"),
    ] {
        let error = read(format!("{good}{row}\n{good}"), "").unwrap_err();
        assert!(
            matches!(&error, DatasetError::Line { line: 2, reason } if reason.contains(words)),
            "{error}"
        );
    }
    let latin = [good.as_bytes(), b"{\"prompt\": \"caf\xe9\", \"answer\": \"1\"}\n"].concat();
    assert!(read(latin, "").unwrap_err().to_string().contains("line=2: its byte=16 is no UTF-8"));
    assert_eq!(read("", "").unwrap_err(), DatasetError::Empty);
    assert!(read("\n", "").unwrap_err().to_string().contains("line=1: it is empty"));
    assert_eq!(read(good.repeat(3), "").unwrap_err(), DatasetError::OnePrompt(3));
    assert_eq!(read(good.repeat(3), "held_out = 0").unwrap().len(Split::Train), 3);
    for (answer, check, words) in
        [("\"four\"", "number", "no whole number"), ("\" \"", "exact", "no answer can match")]
    {
        let row = format!("{{\"prompt\": \"a\", \"answer\": {answer}}}");
        let error = read(row, &format!("check = \"{check}\"")).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_row_is_read_as_it_was_written() {
    let line = r#"{"question": "2 + 2?", "solution": 4, "level": [1, {"a": null}], "answer": "taken"}"#;
    let of = spec("prompt = \"question\"\nanswer = \"solution\"");
    let row = Row::read(line.as_bytes(), &of).unwrap();
    assert_eq!(row.messages, [ChatMessage { role: ChatRole::User, content: "2 + 2?".to_owned() }]);
    assert_eq!(row.answer(), Some("4"));
    assert_eq!(row.fields["level"], serde_json::json!([1, { "a": null }]));
    assert_eq!(row.fields.len(), 2);
    let chat =
        r#"{"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}]}"#;
    let row = Row::read(chat.as_bytes(), &spec("answer = \"\"")).unwrap();
    assert_eq!((row.messages.len(), row.messages[0].role, row.answer()), (2, ChatRole::System, None));
    // A last line without its end counts, and so do lines that end as on Windows.
    let rows =
        read("{\"prompt\": \"a\", \"answer\": 1}\r\n{\"prompt\": \"b\", \"answer\": true}", "").unwrap();
    assert_eq!(rows.len(Split::Train) + rows.len(Split::HeldOut), 2);
}

#[test]
fn held_out_prompts_are_never_trained_on() {
    for share in [0.01, 0.125, 0.5, 0.99] {
        let of = spec(&format!("held_out = {share}"));
        let rows = Rows::read(Bytes::from(numbers(400)), &of).unwrap();
        let prompts = |split| {
            let rows = (0..rows.len(split) as u64).map(|row| rows.row(split, row, &of).unwrap().1);
            rows.map(|row| row.messages[0].content.clone()).collect::<BTreeSet<String>>()
        };
        let (train, held_out) = (prompts(Split::Train), prompts(Split::HeldOut));
        assert!(train.is_disjoint(&held_out), "share={share}");
        assert_eq!(train.len() + held_out.len(), 200);
        assert_eq!(held_out.len(), (share * 200.0_f64).round() as usize, "the share holds to one prompt");
        let content = rows.content();
        assert_eq!(
            (content.train + content.held_out, content.rows(Split::HeldOut)),
            (400, 2 * held_out.len() as u64)
        );
        assert!(matches!(rows.row(Split::Train, content.train, &of), Err(DatasetError::NoRow { .. })));
    }
}

#[test]
fn each_line_is_one_row_of_one_split() {
    let of = spec("");
    let rows = Rows::read(Bytes::from(numbers(64)), &of).unwrap();
    let lines = |split| (0..rows.len(split) as u64).map(move |row| (split, row));
    let mut seen: Vec<usize> = lines(Split::Train)
        .chain(lines(Split::HeldOut))
        .map(|(split, row)| {
            let (line, row) = rows.row(split, row, &of).unwrap();
            assert_eq!(row.answer(), Some(format!("{}", line - 1).as_str()));
            line
        })
        .collect();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(1..=64));
}

#[test]
fn a_prompt_that_is_held_out_in_one_domain_and_trained_in_another_is_found() {
    let file = numbers(40);
    let find = |(one, one_more): (&str, &str), (other, other_more): (&str, &str)| {
        let [one_rows, other_rows] =
            [(one, one_more), (other, other_more)].map(|(text, more)| read(text, more).unwrap());
        let (one_spec, other_spec) = (spec(one_more), spec(other_more));
        let (one, other) = (Prompts::of(&one_rows, &one_spec), Prompts::of(&other_rows, &other_spec));
        Leak::find(&one.unwrap(), &other.unwrap()).unwrap()
    };
    // One file with two shares: 15 of its 20 prompts are trained on here, 10 held out there.
    let leak = find((&file, "held_out = 0.25"), (&file, "held_out = 0.5")).expect("a leak");
    assert_eq!(leak.prompts, 5);
    let line = |at: usize| file.lines().nth(at - 1).unwrap();
    assert!(line(leak.trained_line).contains(&format!("\"prompt\": \"{}\"", leak.prompt)), "{leak}");
    assert_eq!(leak.trained_line, leak.held_out_line);
    assert!(leak.to_string().starts_with("prompts=5 are trained on and held out there, as \""), "{leak}");
    // What is held out here is held out there too.
    assert_eq!(find((&file, "held_out = 0.5"), (&file, "held_out = 0.25")), None);
    assert_eq!(find((&file, ""), (&file, "")), None);
    // Another file, with the same prompts under another name and as messages.
    let other: String =
        (15..60).map(|i| format!("{{\"ask\": [{{\"role\": \"user\", \"content\": \"{i}\"}}]}}\n")).collect();
    let more = "prompt = \"ask\"\nanswer = \"\"\nheld_out = 0";
    let leak = find((&other, more), (&file, "held_out = 0.95")).expect("a leak");
    assert!((4..=5).contains(&leak.prompts) && leak.held_out_line > leak.trained_line, "{leak:?}");
    assert_eq!(find((&file, "held_out = 0.95"), (&other, more)), None, "nothing is held out there");
}
