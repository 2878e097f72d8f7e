//! Settings of `code`: the tests that an answer must pass, and its limits.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::settings::{RuleSettings, WrongSetting, count, faulty, scoring, sound};
use crate::limits::MAX_SCORING_MS;

/// Tests of one answer at most.
const MAX_TESTS: usize = 256;

/// Settings of the rule `code`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CodeSettings {
    /// The language of the answer. Default `python`.
    pub language: Language,
    /// Tests of every answer. Default [].
    pub tests: Vec<CodeTest>,
    /// The field of the prompt's row that holds its tests, in one of the forms that [`tests_of`]
    /// reads. Default none.
    pub tests_field: Option<String>,
    /// The score is the share of tests that pass, instead of 1 if all do, else 0. Default false.
    pub partial: bool,
    /// Milliseconds of one test. Default 5000.
    pub wall_ms: u64,
    /// Milliseconds of all tests of an answer together; those that are not reached are failed. Default
    /// and at most [`MAX_SCORING_MS`].
    pub total_ms: u64,
    /// Milliseconds of processor time of one process, rounded up to seconds. Default 5000.
    pub cpu_ms: u64,
    /// MiB of memory, of one process and of all together. Default 512.
    pub memory_mib: u64,
    /// MiB of files. Default 64.
    pub disk_mib: u64,
    /// KiB that a test may write to its output. Default 1024.
    pub output_kib: u64,
    /// Processes and threads at once. Default 16.
    pub processes: u64,
    /// Walls that may be missing on a worker's machine. Default []: without one of them, no answer
    /// runs.
    pub may_lack: Vec<Wall>,
}

impl Default for CodeSettings {
    fn default() -> Self {
        Self {
            language: Language::Python,
            tests: Vec::new(),
            tests_field: None,
            partial: false,
            wall_ms: 5_000,
            total_ms: MAX_SCORING_MS,
            cpu_ms: 5_000,
            memory_mib: 512,
            disk_mib: 64,
            output_kib: 1_024,
            processes: 16,
            may_lack: Vec::new(),
        }
    }
}

/// The language of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Language {
    /// Python 3, the worker's.
    Python,
}

/// A wall of the sandbox besides namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wall {
    /// Which files may be touched.
    Landlock,
    /// Which calls of the kernel may be made.
    Seccomp,
}

/// One test: either what the program must write when it reads `stdin`, or code that runs after the
/// answer's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CodeTest {
    /// What the program reads. Default empty.
    pub stdin: String,
    /// What it must write, white space at the ends of lines and of the whole apart.
    pub stdout: Option<String>,
    /// Code that must run to its end after the answer's, `assert add(1, 2) == 3` for example.
    pub code: Option<String>,
}

impl RuleSettings for CodeSettings {
    fn wrong(&self) -> Vec<WrongSetting> {
        let mut wrong: Vec<_> = [
            scoring("wall_ms", self.wall_ms, 10),
            scoring("total_ms", self.total_ms, 10),
            count("cpu_ms", self.cpu_ms, 10, 600_000),
            count("memory_mib", self.memory_mib, 64, 65_536),
            count("disk_mib", self.disk_mib, 1, 65_536),
            count("output_kib", self.output_kib, 1, 2_048),
            count("processes", self.processes, 1, 1_024),
            count("tests", self.tests.len() as u64, 0, MAX_TESTS as u64),
        ]
        .into_iter()
        .flatten()
        .collect();
        if self.tests.is_empty() == self.tests_field.is_none() {
            let value = format!("{} tests and tests_field = {:?}", self.tests.len(), self.tests_field);
            let remedy = "an answer is right when it passes its tests; name either the row's field that holds them, \
                tests_field = \"tests\", or tests for all rows, tests = [{ stdin = \"1 2\", stdout = \"3\" }]";
            wrong.push(WrongSetting::new("tests", value, remedy));
        }
        wrong.extend(faulty("tests", &self.tests, CodeTest::fault));
        wrong
    }
}

impl CodeTest {
    /// Why it is not a valid test.
    fn fault(&self) -> Option<&'static str> {
        (self.stdout.is_some() == self.code.is_some())
            .then_some("a test has either stdout, with or without stdin, or code; write one of them")
    }
}

/// Tests as data sets hold them: a list of [`CodeTest`]s; a list of lines of code, each a test;
/// code as one text; a table of `inputs` and `outputs`, two lists of one length; or any of these as
/// a text of JSON.
///
/// # Errors
/// The value has another form, which the message describes.
pub fn tests_of(value: &Value) -> Result<Vec<CodeTest>, String> {
    let of_code = |code: &str| CodeTest { code: Some(code.to_owned()), ..CodeTest::default() };
    let tests: Vec<CodeTest> = match value {
        Value::String(text) => match serde_json::from_str(text) {
            Ok(inner @ (Value::Array(_) | Value::Object(_))) => return tests_of(&inner),
            Ok(_) | Err(_) => vec![of_code(text)],
        },
        Value::Array(tests) => {
            let read = |test: &Value| match test {
                Value::String(code) => Ok(of_code(code)),
                _ => CodeTest::deserialize(test).map_err(|error| error.to_string()),
            };
            tests.iter().map(read).collect::<Result<_, _>>()?
        }
        Value::Object(table) => {
            let list = |name| {
                table.get(name).and_then(Value::as_array).ok_or_else(|| format!("it has no list {name:?}"))
            };
            let (inputs, outputs) = (list("inputs")?, list("outputs")?);
            if inputs.len() != outputs.len() {
                return Err(format!("it has inputs={} and outputs={}", inputs.len(), outputs.len()));
            }
            let text =
                |value: &Value| value.as_str().map(str::to_owned).ok_or("an input or output is no text");
            let pair = |(stdin, stdout)| {
                Ok::<_, &str>(CodeTest { stdin: text(stdin)?, stdout: Some(text(stdout)?), code: None })
            };
            inputs.iter().zip(outputs).map(pair).collect::<Result<_, _>>()?
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            return Err("it is neither text nor list nor table".into());
        }
    };
    sound("tests", tests, MAX_TESTS, CodeTest::fault)
}
