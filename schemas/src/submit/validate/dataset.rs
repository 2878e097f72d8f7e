//! Checks of a dataset's settings.

use super::{Checks, Refusal};
use crate::dataset::{AnswerCheck, DatasetSpec, ToolRef};
use crate::env_step::Split;
use crate::limits;
use crate::reward::RewardRule;
use crate::submit::{RewardSpec, RunSpec};

/// Checks the dataset of `environment`, which is at the path `at` of the run file. `prompts` are
/// evaluated.
pub(super) fn check(
    dataset: &DatasetSpec,
    (at, rewards, prompts): (&str, &[RewardSpec], u64),
    checks: &mut Checks,
) {
    check_rows(dataset, (at, prompts), checks);
    check_answers(dataset, at, rewards, checks);
    check_tools(dataset, at, checks);
}

/// Checks the rows alone, however they are answered.
pub(super) fn check_rows(dataset: &DatasetSpec, (at, prompts): (&str, u64), checks: &mut Checks) {
    let field = |name: &str| format!("{at}.{name}");
    checks.require(
        !dataset.path.trim().is_empty() && dataset.path.len() <= limits::MAX_PATH_BYTES,
        &field("path"),
        format!("{:?}", dataset.path),
        "name the file with the rows; a relative path starts at the run file's folder",
    );
    checks.require(
        !dataset.prompt.is_empty() && dataset.prompt != dataset.answer,
        &field("prompt"),
        format!("{:?}", dataset.prompt),
        format!("name the field that holds the prompt, another than {}", field("answer")),
    );
    checks.number(&field("held_out"), dataset.held_out, 0.0, 0.9);
    checks.require(
        prompts == 0 || dataset.held_out > 0.0,
        &field("held_out"),
        dataset.held_out,
        "nothing could be evaluated; hold some rows out, or choose evaluate.prompts = 0",
    );
    let Some(content) = &dataset.content else { return };
    checks.require(content.train > 0, &field("content.train"), content.train, "there is nothing to train on");
    let rows = content.rows(Split::HeldOut);
    checks.require(
        prompts <= rows,
        "evaluate.prompts",
        prompts,
        format!(
            "of {} only rows={rows} are held out; choose at most that, or a larger {}",
            dataset.path,
            field("held_out")
        ),
    );
}

fn check_answers(dataset: &DatasetSpec, at: &str, rewards: &[RewardSpec], checks: &mut Checks) {
    let by_reward = dataset.check == AnswerCheck::ByReward;
    checks.require(
        by_reward || !dataset.answer.is_empty(),
        &format!("{at}.answer"),
        "\"\"",
        format!(
            "there is nothing to check; name the field of the answer, or choose {at}.check = \"by_reward\""
        ),
    );
    checks.require(
        !by_reward || dataset.max_turns == 1 || !dataset.tools.is_empty(),
        &format!("{at}.max_turns"),
        dataset.max_turns,
        format!(
            "without a check no answer can be found wrong; choose 1, or {at}.check = \"number\" or \"exact\""
        ),
    );
    let silent = |reward: &&RewardSpec| matches!(reward.rule, RewardRule::EnvReturn | RewardRule::Success);
    if let Some(reward) = rewards.iter().find(silent).filter(|_| by_reward) {
        checks.require(
            false,
            &format!("{at}.check"),
            "by_reward",
            format!(
                "the reward {} asks the environment, which does not know the answer then; choose \"number\" or \"exact\", or other rewards",
                reward.rule.name()
            ),
        );
    }
}

fn check_tools(dataset: &DatasetSpec, at: &str, checks: &mut Checks) {
    let field = |name: &str| format!("{at}.{name}");
    let count = dataset.tools.len();
    if count == 0 {
        return;
    }
    let most = limits::MAX_TOOL_REFS;
    checks.require(count <= most, &field("tools"), count, format!("name at most {most}"));
    for (i, tool) in dataset.tools.iter().enumerate().take(most) {
        checks.require(
            tool.parse::<ToolRef>().is_ok(),
            &field("tools"),
            format!("{tool:?}"),
            "name a server of tools as workers have it by --mcp, or one tool as server/tool",
        );
        let is_new = !dataset.tools[..i].contains(tool);
        checks.require(is_new, &field("tools"), format!("{tool:?}"), "it is named twice; leave one out");
    }
    checks.require(
        dataset.max_turns >= 2,
        &field("max_turns"),
        dataset.max_turns,
        "calls of the last turn are not made, so that tools need 2 turns or more",
    );
    checks.count(&field("tool_ms"), dataset.tool_ms, 1, limits::MAX_TOOL_MS);
    let most = u64::from(dataset.prompt_tokens);
    checks.count(&field("tool_result_tokens"), u64::from(dataset.tool_result_tokens), 1, most);
}

impl RunSpec {
    /// What a run file lacks until it is submitted with its data; empty if nothing.
    #[must_use]
    pub fn missing_at_submit(&self) -> Vec<Refusal> {
        let missing = self.parts().enumerate().filter_map(|(i, domain)| {
            let dataset = domain.environment.dataset().filter(|dataset| dataset.content.is_none())?;
            Some(Refusal {
                field: self.path_of(i, "environment.content"),
                value: "none".to_owned(),
                remedy: format!(
                    "the rows of {} are not in the object store; submit the run with `millrace submit`, which stores them there",
                    dataset.path
                ),
            })
        });
        missing.collect()
    }
}
