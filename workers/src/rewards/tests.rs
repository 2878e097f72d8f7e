use super::*;
use millrace_schemas::env_step::{Speaker, Utterance};
use millrace_schemas::reward::TurnResult;
use serde_json::json;

fn task(rule: RewardRule, rewards: &[f64], success: bool) -> RewardTask {
    let turn = |(i, reward): (usize, &f64)| TurnResult { reward: *reward, valid: i != 0, tokens: 1 };
    RewardTask::new(rule, rewards.iter().enumerate().map(turn).collect(), success)
}

async fn score(task: &RewardTask) -> Result<f64, RewardError> {
    super::score(task, &Tools::default()).await.map(|done| done.score)
}

#[tokio::test]
async fn each_rule_scores_as_it_says() {
    let rewards = [0.25, 0.0, 1.0, -0.5];
    assert_eq!(score(&task(RewardRule::EnvReturn, &rewards, true)).await, Ok(0.75));
    assert_eq!(score(&task(RewardRule::Success, &rewards, true)).await, Ok(1.0));
    assert_eq!(score(&task(RewardRule::Success, &rewards, false)).await, Ok(0.0));
    assert_eq!(score(&task(RewardRule::Format, &rewards, true)).await, Ok(-0.25));
}

#[tokio::test]
async fn what_is_no_number_is_no_reward() {
    for rule in RULES {
        for wrong in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let error = score(&task(rule, &[0.0, wrong], true)).await.unwrap_err();
            assert!(matches!(error, RewardError::TurnReward { turn: 2, .. }), "{rule:?} {error}");
        }
        assert_eq!(score(&task(rule, &[], true)).await, Err(RewardError::NoTurns));
    }
    let huge = task(RewardRule::EnvReturn, &[f64::MAX, f64::MAX], true);
    assert_eq!(score(&huge).await, Err(RewardError::Score(f64::INFINITY)));
}

fn spoken(rule: RewardRule, settings: serde_json::Value, row: serde_json::Value, answer: &str) -> RewardTask {
    let say = |speaker, text: &str| Utterance { speaker, text: text.to_owned() };
    let conversation = vec![say(Speaker::Environment, "What?"), say(Speaker::Policy, answer)];
    let table = |value| serde_json::from_value(value).unwrap();
    RewardTask { conversation, settings: table(settings), row: table(row), ..task(rule, &[0.0], false) }
}

#[tokio::test]
async fn math_asks_for_the_right_answer_of_the_row() {
    let math = async |settings, row, answer| score(&spoken(RewardRule::Math, settings, row, answer)).await;
    let row = json!({ "answer": "\\frac{1}{2}", "other": 7 });
    assert_eq!(math(json!({}), row.clone(), "It is 0.5").await, Ok(1.0));
    assert_eq!(math(json!({}), row.clone(), "It is 0.6").await, Ok(0.0));
    assert_eq!(math(json!({ "boxed": true }), row.clone(), "It is 0.5").await, Ok(0.0));
    assert_eq!(math(json!({ "boxed": true }), row.clone(), "It is \\boxed{0.5}").await, Ok(1.0));
    assert_eq!(math(json!({ "answer_field": "other" }), row.clone(), "7").await, Ok(1.0));
    assert_eq!(math(json!({ "answer": "3" }), row.clone(), "3").await, Ok(1.0));
    for row in [json!({}), json!({ "answer": null }), json!({ "answer": "" })] {
        let none = math(json!({}), row.clone(), "0").await.unwrap_err();
        assert!(
            matches!(none, RewardError::Row { .. }) && matches!(none.into(), Failure::Impossible(_)),
            "{row}"
        );
    }
    let silent = RewardTask { conversation: Vec::new(), ..spoken(RewardRule::Math, json!({}), row, "") };
    assert_eq!(score(&silent).await, Err(RewardError::NoWords));
}

#[tokio::test]
async fn a_form_counts_by_turns_and_instructions_as_a_whole() {
    let tags = json!({ "tags": ["think", "answer"] });
    let good = "<think>so</think><answer>3</answer>";
    let mut task = spoken(RewardRule::Format, tags, json!({}), good);
    assert_eq!(score(&task).await, Ok(0.0));
    for speaker in [Speaker::Environment, Speaker::Policy] {
        task.conversation.push(Utterance { speaker, text: "and?".to_owned() });
    }
    assert_eq!(score(&task).await, Ok(-0.5));
    task.conversation.clear();
    assert_eq!(score(&task).await, Err(RewardError::NoWords));

    let two = json!([{ "kind": "no_commas" }, { "kind": "words", "count": { "at_most": 2 } }]);
    let instructions = async |settings, answer| {
        let row = json!({ "asked": two, "written": two.to_string(), "none": [] });
        score(&spoken(RewardRule::Instructions, settings, row, answer)).await
    };
    for field in ["asked", "written"] {
        assert_eq!(instructions(json!({ "instructions_field": field }), "so be").await, Ok(1.0));
        assert_eq!(instructions(json!({ "instructions_field": field }), "so, be").await, Ok(0.0));
        let partly = json!({ "instructions_field": field, "partial": true });
        assert_eq!(instructions(partly, "so, be").await, Ok(0.5));
    }
    assert_eq!(
        instructions(json!({ "instructions": two, "loose": true }), "Well, now:\nso be").await,
        Ok(1.0)
    );
    for field in ["none", "absent"] {
        let none = instructions(json!({ "instructions_field": field }), "so").await.unwrap_err();
        assert!(matches!(none, RewardError::Row { .. }), "{field}");
    }
}
