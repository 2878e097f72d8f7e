//! The examples of the README.

use std::path::Path;

/// The README's example in Python that has this in it.
pub(crate) fn example(with: &str) -> String {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let mut examples = readme.split("```python\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    examples.find(|example| example.contains(with)).unwrap().to_owned()
}
