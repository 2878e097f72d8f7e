//! Evaluations as text.

use millrace_schemas::PolicyVersion;
use millrace_schemas::api::Evaluation;

use super::term::percent;

/// `25.0 % of 256 held-out prompts solved (standard error 2.7 %, 250 distinct, temperature 1;
/// pass@8 60.0 %)`.
pub(super) fn words(evaluation: &Evaluation) -> String {
    let Evaluation { success, prompts, distinct, temperature, failed, .. } = evaluation;
    let reason = evaluation.reason.as_ref().map_or(String::new(), |reason| format!(", the last: {reason}"));
    let Some(success) = success else {
        return format!("no held-out prompt was played to its end, {failed} failed{reason}");
    };
    let mut facts = Vec::new();
    facts.extend(evaluation.standard_error.map(|error| format!("standard error {}", percent(error))));
    // Evaluations by older versions do not count distinct prompts.
    facts.extend((*distinct > 0).then(|| format!("{distinct} distinct")));
    facts.push(format!("temperature {temperature}"));
    facts.extend((*failed > 0).then(|| format!("{failed} more failed{reason}")));
    let last = evaluation.pass.last();
    let pass = last.map_or(String::new(), |pass| format!("; pass@{} {}", pass.k, percent(pass.success)));
    format!("{} of {prompts} held-out prompts solved ({}{pass})", percent(*success), facts.join(", "))
}

/// The first and the last evaluation at the run's first temperature, by which progress is measured.
pub(super) fn leading(evaluations: &[Evaluation]) -> impl DoubleEndedIterator<Item = &Evaluation> + Clone {
    let temperature = evaluations.first().map_or(0.0, |evaluation| evaluation.temperature);
    evaluations.iter().filter(move |evaluation| evaluation.temperature == temperature)
}

/// The evaluation of a version at the first temperature; the newest if there are several.
pub(super) fn of_version(evaluations: &[Evaluation], version: PolicyVersion) -> Option<&Evaluation> {
    leading(evaluations).rev().find(|evaluation| evaluation.version == version.0)
}

#[cfg(test)]
mod tests {
    use millrace_schemas::api::PassAt;

    use super::*;
    use crate::sample;

    #[test]
    fn an_evaluation_tells_how_sure_it_is() {
        let mut evaluation = sample::status(10).evaluations[1].clone();
        assert_eq!(
            words(&evaluation),
            "50.0 % of 256 held-out prompts solved (standard error 3.1 %, 250 distinct, temperature 0)"
        );
        evaluation.temperature = 1.0;
        evaluation.failed = 3;
        evaluation.reason = Some("it raised".to_owned());
        evaluation.pass = vec![PassAt { k: 1, success: 0.5 }, PassAt { k: 8, success: 0.75 }];
        assert!(
            words(&evaluation).ends_with("temperature 1, 3 more failed, the last: it raised; pass@8 75.0 %)"),
            "{}",
            words(&evaluation)
        );
    }

    #[test]
    fn an_evaluation_whose_prompts_all_failed_solves_none_of_none() {
        let sample = sample::status(10).evaluations[1].clone();
        let reason = Some("it raised".to_owned());
        let none = Evaluation { success: None, reward: None, prompts: 0, failed: 17, reason, ..sample };
        assert_eq!(words(&none), "no held-out prompt was played to its end, 17 failed, the last: it raised");
    }

    #[test]
    fn the_first_temperature_tells_the_learning() {
        let status = sample::status(10);
        let mut evaluations = Vec::new();
        for evaluation in &status.evaluations {
            evaluations.push(evaluation.clone());
            evaluations.push(Evaluation { temperature: 1.0, success: Some(0.01), ..evaluation.clone() });
        }
        assert_eq!(leading(&evaluations).map(|e| e.success).collect::<Vec<_>>(), [Some(0.04), Some(0.5)]);
        assert_eq!(of_version(&evaluations, PolicyVersion(10)).map(|e| e.success), Some(Some(0.5)));
    }
}
