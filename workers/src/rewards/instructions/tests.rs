use super::*;
use serde_json::{Value, json};

fn one(instruction: &Value) -> Instruction {
    serde_json::from_value(instruction.clone()).unwrap_or_else(|error| panic!("{instruction}: {error}"))
}

#[test]
fn each_instruction_tells_answers_apart() {
    let at = |kind: &str, least: u64, most: u64| json!({ "kind": kind, "count": { "at_least": least, "at_most": most } });
    for (instruction, follows_it, does_not) in [
        (at("words", 2, 3), "one two three", "one two three four"),
        (at("words", 2, 3), "one-two three", "one"),
        (at("sentences", 2, 2), "It is so. Is it?", "It is 3.5 metres"),
        (at("sentences", 1, 1), "no end", "One. Two."),
        (at("paragraphs", 2, 2), "a\n\nb\nc\n", "a\nb"),
        (at("paragraphs", 2, 2), "a\n \n\n\nb", "a\n\nb\n\nc"),
        (at("lines", 2, 2), "a\n\nb", "a"),
        (at("bullets", 2, 2), "so:\n* a\n  - b", "*a*\n* b"),
        (json!({ "kind": "keywords", "words": ["Rust", "on time"] }), "rust, On Time!", "rusty on time"),
        (json!({ "kind": "keywords", "words": ["a"], "count": { "at_least": 2 } }), "a b A", "a b"),
        (json!({ "kind": "keywords", "words": ["天气"] }), "今天天气好", "今天好"),
        (json!({ "kind": "forbidden", "words": ["art"] }), "artful", "the ART of it"),
        (json!({ "kind": "letter", "letter": "E", "count": { "at_most": 1 } }), "E", "See"),
        (json!({ "kind": "lower_case" }), "all, 3 é", "All"),
        (json!({ "kind": "upper_case" }), "ALL, 3 É", "ALl"),
        (at("capital_words", 1, 1), "this is BIG", "this is BIG NEWS"),
        (at("capital_words", 0, 0), "this is 3 big", "A"),
        (json!({ "kind": "starts_with", "text": "Dear" }), " dear you", "Oh dear"),
        (json!({ "kind": "ends_with", "text": "Bye." }), "so\nbye.\n", "bye. P.S."),
        (json!({ "kind": "json" }), "```json\n{\"a\": 1}\n```", "{a: 1}"),
        (json!({ "kind": "json" }), "[1, 2]", "so [1, 2]"),
        (json!({ "kind": "quoted" }), "\"so\"", "\"so"),
        (json!({ "kind": "quoted" }), "\"\"", "\""),
        (json!({ "kind": "no_commas" }), "so. it is", "so, it is"),
        (json!({ "kind": "title" }), "<<On time>>\nso", "<<>> so"),
        (at("placeholders", 2, 2), "[name], [a b]", "[name] []"),
        (at("highlights", 2, 2), "*a* and **b c**", "* a\n* b\n*c*"),
    ] {
        let rule = one(&instruction);
        assert!(follows(&rule, follows_it), "{instruction}: {follows_it:?}");
        assert!(!follows(&rule, does_not), "{instruction}: {does_not:?}");
        assert!(!follows(&rule, " \n"), "{instruction}: nothing follows nothing");
    }
}

#[test]
fn a_loose_reading_forgives_a_first_or_last_line_and_asterisks() {
    let lower = one(&json!({ "kind": "lower_case" }));
    let loosely = |text: &str| loose(text).iter().any(|text| follows(&lower, text));
    assert!(!follows(&lower, "Sure:\nall small") && loosely("Sure:\nall small"));
    assert!(loosely("all small\nBYE") && loosely("Sure:\nall small\nBYE") && !loosely("all\nBIG\nsmall"));
    let start = one(&json!({ "kind": "starts_with", "text": "so" }));
    assert!(
        !follows(&start, "**so** it is") && loose("**so** it is").iter().any(|text| follows(&start, text))
    );
    assert!(!loosely("BIG"), "what is left out leaves nothing");
}
