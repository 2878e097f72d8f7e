use std::path::Path;

use bytes::Bytes;
use millrace_schemas::dataset::{DatasetSpec, Rows};
use millrace_schemas::env_step::{EnvAction, EnvStepDone, EnvStepTask, EnvironmentSpec, Speaker, Split};
use serde_json::{Value, json};

use super::super::{Acted, Dataset, longest_prompt};
use super::*;
use crate::envs::testing::{character_tokenizer, codec_of};
use crate::mcp::{McpArg, McpServers};

/// A template in the form of Hermes, and one that knows no tools.
const TEMPLATES: [&str; 2] = [
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}\
     {% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}\
     {% if add_generation_prompt %}<assistant>{% endif %}",
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
];
const WITHIN: Duration = Duration::from_secs(30);

/// A codec with a token for each printable character.
fn codec(template: &str) -> Codec {
    codec_of(&character_tokenizer(&json!([])), &json!({ "chat_template": template }))
}

/// A run with the tools of `tests/workers/mcp/hostile.py`.
struct Game {
    spec: DatasetSpec,
    rows: Rows,
    codec: Codec,
    servers: McpServers,
}

impl Game {
    async fn new(template: &str, more: &Value) -> Self {
        let mut spec = json!({
            "path": "rows.jsonl", "held_out": 0, "check": "number", "max_turns": 4, "prompt_tokens": 4_000,
            "tools": ["s/echo", "s/fail", "s/big", "s/die"],
        });
        spec.as_object_mut().unwrap().append(&mut more.as_object().unwrap().clone());
        let spec: DatasetSpec = serde_json::from_value(spec).unwrap();
        let row = Bytes::from_static(b"{\"prompt\": \"2 + 2?\", \"answer\": 4}\n");
        let rows = Rows::read(row, &spec).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workers/mcp/hostile.py");
        let command = format!("python3 {}", script.display());
        let servers = McpServers::start(&[McpArg { name: "s".to_owned(), command }]).await.unwrap();
        Self { spec, rows, codec: codec(template), servers }
    }

    async fn declared(&self) -> (Vec<Declared>, Vec<Value>) {
        let declared = self.servers.declared(&self.spec.tools).await.unwrap();
        let objects = declared.iter().map(|declared| declared.tool().object()).collect();
        (declared, objects)
    }

    /// A task as the stage executes it.
    async fn act(&self, action: EnvAction) -> Result<EnvStepDone, McpError> {
        let environment = EnvironmentSpec::Dataset(self.spec.clone());
        let (split, seed, row, prefix) = (Split::Train, 1, Some(0), Vec::new());
        let task = EnvStepTask { environment, split, seed, row, action, prefix, answers: None };
        let (declared, tools) = self.declared().await;
        let game = Dataset { spec: &self.spec, rows: &self.rows, codec: Some(&self.codec), tools: &tools };
        match game.act(&task).unwrap() {
            Acted::Done(done) => Ok(*done),
            Acted::Calls(turn) => {
                let called = turn.call(&declared, WITHIN).await?;
                Ok(game.show(&task, turn, &called).unwrap())
            }
        }
    }

    async fn reset(&self) -> EnvStepDone {
        self.act(EnvAction::Reset).await.unwrap()
    }

    async fn say(&self, state: &[u8], words: &str) -> EnvStepDone {
        let tokens = self.codec.encode(words).unwrap();
        self.act(EnvAction::Step { state: state.to_vec(), tokens }).await.unwrap()
    }

    fn words(&self, done: &EnvStepDone) -> String {
        self.codec.decode(&done.observation, true).unwrap()
    }
}

fn called(name: &str, arguments: &Value) -> String {
    format!("<tool_call>\n{}\n</tool_call>", json!({ "name": name, "arguments": arguments }))
}

#[tokio::test]
async fn a_policy_is_told_of_tools_calls_them_and_reads_what_they_gave() {
    for (template, (prompt, system, results)) in TEMPLATES.into_iter().zip([
        ("<tools>[{", "<system>Count.<user>", "<tool>hi<tool>Error: it failed<assistant>"),
        (
            "<system>Count.\n\n# Tools\n",
            "</tool_call><user>",
            "<user><tool_response>\nhi\n</tool_response>\n<tool_response>\nError: it failed\n</tool_response><assistant>",
        ),
    ]) {
        let game = Game::new(template, &json!({ "system": "Count." })).await;
        let start = game.reset().await;
        let words = game.words(&start);
        assert!(words.starts_with(prompt) && words.contains(system), "{words}");
        assert!(words.contains("\"description\": \"One of many.\"") || words.contains("\"description\":\"One of many.\""));
        assert!(words.contains("echo") && !words.contains("\"hang\""), "those that are named: {words}");
        assert_eq!(start.said[0].text, "2 + 2?");
        let turn = format!("I look.{}{}", called("echo", &json!({ "text": "hi" })), called("fail", &json!({})));
        let looked = game.say(&start.state, &turn).await;
        assert_eq!(game.words(&looked), results);
        assert!(looked.valid && !looked.done && !looked.success && looked.reward == 0.0);
        let said: Vec<_> = looked.said.iter().map(|said| (said.speaker, said.text.as_str())).collect();
        assert_eq!(said, [(Speaker::Policy, &*turn), (Speaker::Environment, "hi\n\nError: it failed")]);
        let wrong = game.say(&looked.state, "3").await;
        assert_eq!(game.words(&wrong), "<user>That is not right. Try again.<assistant>");
        let right = game.say(&wrong.state, "It is 4.").await;
        assert!(right.done && right.success && right.valid && right.reward == 1.0);
        let tools = game.declared().await.1;
        let longest = longest_prompt(&game.spec, &game.rows, &game.codec, &tools).unwrap();
        assert_eq!(longest, start.observation.len(), "the check of the rows counts the tools");
    }
}

#[tokio::test]
async fn a_wrong_call_is_answered_with_what_is_wrong() {
    let game = Game::new(TEMPLATES[0], &json!({})).await;
    let start = game.reset().await;
    for (call, words, valid) in [
        (
            called("../../etc", &json!({})),
            "there is no tool \"../../etc\"; the tools are: echo, fail, big, die",
            true,
        ),
        (called("hang", &json!({})), "there is no tool \"hang\"", true),
        (called("echo", &json!([1])), "the arguments must be a JSON object", true),
        (called("echo", &json!({})), "the argument \"text\" is missing", true),
        (called("echo", &json!({ "text": 1 })), "\"text\" must be of type string", true),
        (called("echo", &json!({ "text": "", "x": 1 })), "there is no argument \"x\"", true),
        ("<tool_call>{\"name\": \"echo\"".to_owned(), "the call cannot be read: EOF", false),
        ("<tool_call>echo hi</tool_call>".to_owned(), "the call cannot be read", false),
    ] {
        let done = game.say(&start.state, &call).await;
        let shown = game.words(&done);
        assert!(shown.starts_with("<tool>Error: ") && shown.contains(words), "{call}: {shown}");
        assert!(!done.done && done.valid == valid && done.reward == 0.0, "{call}");
    }
}

#[tokio::test]
async fn calls_of_the_last_turn_are_not_made() {
    let game = Game::new(TEMPLATES[0], &json!({ "max_turns": 2 })).await;
    let start = game.reset().await;
    let turn = called("echo", &json!({ "text": "4" }));
    let first = game.say(&start.state, &turn).await;
    assert!(!first.done);
    // It would fail: the server dies of it.
    let last = game.say(&first.state, &called("die", &json!({ "answer": 4 }))).await;
    assert!(last.done && !last.success && last.valid && last.reward == 0.0 && last.observation.is_empty());
    let last = game.say(&first.state, "<tool_call>4").await;
    assert!(last.done && !last.success && !last.valid, "a call is no answer, whatever is in it");
}

#[tokio::test]
async fn the_first_answer_ends_it_where_a_reward_decides() {
    let game = Game::new(TEMPLATES[0], &json!({ "check": "by_reward" })).await;
    let start = game.reset().await;
    let looked = game.say(&start.state, &called("echo", &json!({ "text": "hi" }))).await;
    assert!(!looked.done);
    let answered = game.say(&looked.state, "3").await;
    assert!(answered.done && answered.valid && !answered.success && answered.reward == 0.0);
}

#[tokio::test]
async fn long_results_are_cut_and_the_policy_is_told_so() {
    let game = Game::new(TEMPLATES[0], &json!({ "tool_result_tokens": 100 })).await;
    let start = game.reset().await;
    let one = game.words(&game.say(&start.state, &called("big", &json!({}))).await);
    assert_eq!(
        one,
        format!("<tool>{}\n[cut: only the first 100 characters are shown]<assistant>", "x".repeat(100))
    );
    // More calls than are made, and results that have room only if each is cut further.
    let many = (0..20).map(|_| called("big", &json!({}))).collect::<String>();
    let game = Game::new(TEMPLATES[0], &json!({ "tool_result_tokens": 500 })).await;
    let done = game.say(&start.state, &many).await;
    let shown = game.words(&done);
    assert!(done.observation.len() <= 4_000, "{}", done.observation.len());
    assert_eq!(shown.matches("[cut: only the first 125 ").count(), MAX_TOOL_CALLS, "{shown}");
    assert!(shown.contains("<tool>Error: 4 further calls were not made: a turn may have 16<assistant>"));
    let game = Game::new(TEMPLATES[1], &json!({ "tool_result_tokens": 120, "prompt_tokens": 120 })).await;
    let shown = game.words(&game.say(&start.state, &many).await);
    assert!(shown.contains("Error: the results are too many to be shown"), "{shown}");
}

#[tokio::test]
async fn a_server_that_dies_is_no_news_for_the_policy() {
    let game = Game::new(TEMPLATES[0], &json!({})).await;
    let start = game.reset().await;
    let turn = called("echo", &json!({ "text": "hi" })) + &called("die", &json!({}));
    let action = EnvAction::Step { state: start.state.clone(), tokens: game.codec.encode(&turn).unwrap() };
    assert_eq!(game.act(action).await, Err(McpError::Ended("s".to_owned())));
    let again = game.say(&start.state, &called("echo", &json!({ "text": "hi" }))).await;
    assert_eq!(game.words(&again), "<tool>hi<assistant>");
}
