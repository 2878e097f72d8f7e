use bytes::Bytes;
use millrace_schemas::reward::{RewardRule, RewardTask, TurnResult};
use serde_json::json;

use super::*;
use crate::envs::testing::{character_tokenizer, codec_of};
use crate::rewards::{self, RewardError, Tools};

/// Ends a turn.
const END: u32 = 96;

/// A tokenizer with a token for each printable character and one that ends a turn, and a chat template
/// that names who speaks.
fn codec() -> Codec {
    let end = json!({
        "id": END, "content": "<end>", "special": true,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
    });
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    codec_of(&character_tokenizer(&json!([end])), &json!({ "chat_template": template, "eos_token": "<end>" }))
}

const ROWS: &str = r#"{"prompt": "2 + 2?", "answer": 4, "tests": ["x"]}
{"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1,000 + 234?"}], "answer": "1,234"}
{"prompt": [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "1 + 1?"}], "answer": 2}
"#;

struct Game {
    spec: DatasetSpec,
    rows: Rows,
    codec: Codec,
}

impl Game {
    fn new(more: &serde_json::Value) -> Self {
        let mut spec =
            serde_json::json!({ "path": "rows.jsonl", "held_out": 0, "check": "number", "max_turns": 2 });
        spec.as_object_mut().unwrap().append(&mut more.as_object().unwrap().clone());
        let spec: DatasetSpec = serde_json::from_value(spec).unwrap();
        let rows = Rows::read(Bytes::from_static(ROWS.as_bytes()), &spec).unwrap();
        Self { spec, rows, codec: codec() }
    }

    fn act(&self, row: u64, action: EnvAction) -> Result<EnvStepDone, EnvError> {
        let environment = millrace_schemas::env_step::EnvironmentSpec::Dataset(self.spec.clone());
        let task = EnvStepTask {
            environment,
            split: Split::Train,
            seed: 1,
            row: Some(row),
            action,
            answers: None,
            prefix: Vec::new(),
        };
        match self.game().act(&task)? {
            Acted::Done(done) => Ok(*done),
            Acted::Calls(turn) => panic!("there are no tools to call: {turn:?}"),
        }
    }

    fn game(&self) -> Dataset<'_> {
        Dataset { spec: &self.spec, rows: &self.rows, codec: Some(&self.codec), tools: &[] }
    }

    fn reset(&self, row: u64) -> EnvStepDone {
        self.act(row, EnvAction::Reset).unwrap()
    }

    fn say(&self, row: u64, state: &[u8], words: &str) -> EnvStepDone {
        let tokens = self.codec.encode(words).unwrap();
        self.act(row, EnvAction::Step { state: state.to_vec(), tokens }).unwrap()
    }

    fn words(&self, done: &EnvStepDone) -> String {
        self.codec.decode(&done.observation, true).unwrap()
    }
}

#[test]
fn a_row_is_asked_with_its_own_frame_or_the_runs() {
    let game = Game::new(&serde_json::json!({ "system": "Count." }));
    let first = game.reset(0);
    assert_eq!(game.words(&first), "<system>Count.<user>2 + 2?<assistant>");
    assert_eq!(first.row, [("answer".to_owned(), "4".into()), ("tests".to_owned(), vec!["x"].into())].into());
    assert_eq!(game.words(&game.reset(1)), "<system>Be brief.<user>1,000 + 234?<assistant>");
    let third = game.reset(2);
    assert_eq!(game.words(&third), "<system>Count.<user>Hi.<assistant>Hello.<user>1 + 1?<assistant>");
    assert_eq!(third.said[0].text, "Hi.\n\nHello.\n\n1 + 1?");
    assert!(!first.done && first.reward == 0.0);
}

#[test]
fn a_right_answer_ends_it_and_a_wrong_one_may_be_mended() {
    let game = Game::new(&serde_json::json!({}));
    let start = game.reset(1);
    let right = game.say(1, &start.state, "That makes 1234.");
    assert!(right.done && right.success && right.valid && right.reward == 1.0 && right.state.is_empty());
    let wrong = game.say(1, &start.state, "1233");
    assert!(!wrong.done && !wrong.success && wrong.valid && wrong.reward == 0.0);
    assert_eq!(game.words(&wrong), "<user>That is not right. Try again.<assistant>");
    let mended = game.say(1, &wrong.state, "1,234");
    assert!(mended.done && mended.success);
    let last = game.say(1, &wrong.state, "who knows");
    assert!(last.done && !last.success && !last.valid && last.reward == 0.0);
}

#[test]
fn an_answer_is_recognised_as_the_run_file_says() {
    let answers = |check: &str, words: &str| {
        let game = Game::new(&serde_json::json!({ "check": check, "max_turns": 1 }));
        let start = game.reset(1);
        let done = game.say(1, &start.state, words);
        assert!(done.done);
        (done.success, done.reward)
    };
    assert_eq!(answers("exact", " 1,234\n"), (true, 1.0));
    assert_eq!(answers("exact", "1234"), (false, 0.0));
    assert_eq!(answers("number", "1234"), (true, 1.0));
    assert_eq!(answers("by_reward", "1,234"), (false, 0.0));
}

#[test]
fn a_malformed_row_is_reported_with_its_line() {
    let game = Game::new(&serde_json::json!({ "prompt_tokens": 40 }));
    let error = game.act(1, EnvAction::Reset).unwrap_err().to_string();
    assert!(error.starts_with("rows.jsonl line=2 has to say tokens=") && error.contains("=40"), "{error}");
    let error = longest_prompt(&game.spec, &game.rows, &game.codec, &[]).unwrap_err().to_string();
    assert!(error.contains("line=2"), "{error}");
    let game = Game::new(&serde_json::json!({ "prompt_tokens": 50 }));
    assert_eq!(
        longest_prompt(&game.spec, &game.rows, &game.codec, &[]).unwrap(),
        game.reset(2).observation.len()
    );
    let error = game.act(3, EnvAction::Reset).unwrap_err();
    assert!(error.to_string().contains("row=3 was asked of Train rows=3"), "{error}");
    let mut state = game.reset(0).state;
    state[2] ^= 1;
    let damaged = game.act(0, EnvAction::Step { state, tokens: vec![1] });
    assert!(matches!(damaged, Err(EnvError::State { .. })));
}

/// What a rule makes of an episode of these steps, the reset first.
async fn scored(
    rule: RewardRule,
    settings: serde_json::Value,
    steps: &[EnvStepDone],
) -> Result<f64, RewardError> {
    let turns =
        steps[1..].iter().map(|done| TurnResult { reward: done.reward, valid: done.valid, tokens: 1 });
    let task = RewardTask {
        settings: serde_json::from_value(settings).unwrap(),
        conversation: steps.iter().flat_map(|done| done.said.clone()).collect(),
        row: steps[0].row.clone(),
        ..RewardTask::new(rule, turns.collect(), false)
    };
    rewards::score(&task, &Tools::default()).await.map(|done| done.score)
}

/// The policy samples nothing but its end token.
#[tokio::test]
async fn an_empty_answer_is_scored_and_not_the_turn_before() {
    let game = Game::new(&json!({ "check": "by_reward" }));
    let empty =
        |state: &[u8]| game.act(1, EnvAction::Step { state: state.to_vec(), tokens: vec![END] }).unwrap();
    let start = game.reset(1);
    let ended = empty(&start.state);
    assert!(ended.done && !ended.valid);
    assert_eq!(ended.said, [Utterance { speaker: Side::Policy, text: String::new() }]);
    let tags = json!({ "tags": ["answer"] });
    let words = json!({ "instructions": [{ "kind": "words", "count": { "at_most": 5 } }] });
    let code = json!({ "tests": [{ "code": "assert True" }] });
    for (rule, settings, score) in [
        (RewardRule::Math, json!({}), 0.0),
        (RewardRule::Format, tags, -1.0),
        (RewardRule::Instructions, words, 0.0),
        (RewardRule::Code, code, 0.0),
    ] {
        assert_eq!(scored(rule, settings, &[start.clone(), ended.clone()]).await, Ok(score), "{rule:?}");
    }

    // The first turn has the right answer in a form that the environment does not read.
    let game = Game::new(&json!({ "check": "exact" }));
    let start = game.reset(1);
    let first = game.say(1, &start.state, "\\boxed{1234}");
    assert!(!first.done);
    let last = game.act(1, EnvAction::Step { state: first.state.clone(), tokens: vec![END] }).unwrap();
    assert!(last.done);
    let math = async |steps: &[EnvStepDone]| scored(RewardRule::Math, json!({}), steps).await;
    assert_eq!(math(&[start.clone(), first.clone()]).await, Ok(1.0));
    assert_eq!(math(&[start.clone(), first, last]).await, Ok(0.0));
    // Without a turn of the policy as text there is nothing to score.
    let none = EnvStepDone { said: Vec::new(), ..start.clone() };
    assert_eq!(math(&[start, none]).await, Err(RewardError::NoWords));
}
