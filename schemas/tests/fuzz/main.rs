//! Malformed bytes: every input is read or refused with a reason, never a panic, never memory or
//! stack without bound. Cases are the same each time; `PROPTEST_CASES=100000` tries more.

#[path = "../wire/samples.rs"]
#[expect(dead_code, reason = "the other test uses the rest")]
mod samples;

#[cfg(test)]
mod bytes;
#[cfg(test)]
mod names;
#[cfg(test)]
mod documents;

#[cfg(test)]
mod fuzz {
    use proptest::strategy::Strategy;
    use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

    /// Tries `test` on what `strategy` makes, the same each time.
    pub(crate) fn fuzz<S: Strategy>(strategy: &S, test: impl Fn(S::Value)) {
        let config = Config { failure_persistence: None, ..Config::default() };
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let mut runner = TestRunner::new_with_rng(config, rng);
        let ran = runner.run(strategy, |value| {
            test(value);
            Ok::<(), TestCaseError>(())
        });
        if let Err(failure) = ran {
            panic!("{failure}");
        }
    }
}
