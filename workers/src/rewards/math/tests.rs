use super::*;
use serde::Deserialize;

/// A pair of the corpus; `equal` is the verdict of math-verify 0.9.0 (`tests/oracle/math_pairs.py`).
#[derive(Debug, Deserialize)]
struct Pair {
    kind: String,
    right: String,
    #[serde(rename = "said")]
    given: String,
    equal: bool,
}

#[test]
fn verdicts_agree_with_math_verify() {
    let pairs: Vec<Pair> =
        serde_json::from_str(include_str!("../../../tests/oracle/math_pairs.json")).unwrap();
    assert!(pairs.len() >= 400, "{}", pairs.len());
    let differ: Vec<&Pair> =
        pairs.iter().filter(|pair| equal_in(&pair.right, &pair.given) != pair.equal).collect();
    let agreed = pairs.len() - differ.len();
    println!("{agreed} of {} agree", pairs.len());
    // Nothing that math-verify takes is refused; what differs is taken here alone, and the README
    // says what that is.
    let refused: Vec<_> = differ.iter().filter(|pair| pair.equal).collect();
    assert!(refused.is_empty(), "{refused:#?}");
    assert!(agreed * 1000 >= pairs.len() * 950, "{agreed} of {}: {differ:#?}", pairs.len());
    let mut kinds: Vec<&str> = differ.iter().map(|pair| pair.kind.as_str()).collect();
    kinds.dedup();
    let known = [
        "integer",
        "thousands",
        "mixed",
        "percent",
        "units",
        "degrees",
        "power",
        "root",
        "pi",
        "trig",
        "interval",
        "complex",
        "text",
    ];
    assert_eq!(kinds, known);
}

#[test]
fn what_looks_alike_is_not_the_same() {
    for (right, given) in [
        ("12", "21"),
        ("x^2", "2x"),
        ("x^{12}", "x^12y"),
        ("\\frac{1}{x}", "x"),
        ("\\sqrt{x}", "x"),
        ("(1,2)", "1"),
        ("\\{1,2\\}", "(1,2)"),
        ("[1,2]", "(1,2)"),
        ("10^{30}", "10^{30}+1"),
        ("1.0000001", "1.00001"),
        ("x=1", "x=-1"),
        ("even", "odd"),
        ("\\text{north}", "\\text{south}"),
        ("3", ""),
        ("x_1", "x_2"),
        ("0", "\\frac{1}{10^9}"),
        ("\\sqrt{2}", "\\frac{99}{70}"),
    ] {
        assert!(!equal(right, given), "{right} and {given}");
        assert!(!equal(given, right), "{given} and {right}");
        if !given.is_empty() {
            assert!(equal(right, right) && equal(given, given), "{right} and {given} by themselves");
        }
    }
}

#[test]
fn no_answer_takes_long_or_breaks_the_parser() {
    let deep = format!("{}1{}", "(".repeat(2_000), ")".repeat(2_000));
    let tower = "9^".repeat(500) + "9";
    let braces = "\\frac{".repeat(600);
    for given in [
        deep.as_str(),
        &tower,
        &braces,
        "1/0",
        "0^{-1}",
        "\\frac{1}{0}",
        "9^{9^{9^9}}",
        "171!",
        "\\binom{1000}{500}",
        "\\binom{5}{10^{18}}",
        "\\binom{10^{18}}{5}",
        "\\binom{10^5}{50000}",
        "\\binom{1e300}{1e300}",
        "(10^5)!",
        "1e300!",
        "\\binom{10000}{5000}!".repeat(30).as_str(),
        "1e99999999",
        "\\log 0",
        "\\ln(-1)",
        "|",
        "||",
        "{",
        "}",
        "\\",
        "\\text{",
        "^",
        "_",
        "x_",
        "\\sqrt[",
        "\\begin{x}",
        "&&",
        "\\\\",
        "-".repeat(3_000).as_str(),
        "+".repeat(3_000).as_str(),
        "3!!!!".repeat(700).as_str(),
        ("\\frac".to_owned() + &"-".repeat(3_000)).as_str(),
        "1+".repeat(2_000).as_str(),
        "\u{0}",
        "é∞π°",
        "\\left(\\right)",
        "()",
        "[]",
        "\\{\\}",
        ",",
        ",,,",
        "1,,2",
        "%",
        "\\%",
        "!!",
    ] {
        let _ = equal("1", given);
        let _ = equal(given, "x");
        assert!(!equal("1234.5", given), "{given}");
    }
}

#[test]
fn the_answer_is_looked_for_where_it_should_be() {
    assert!(equal_in("\\boxed{5}", "The answer is 5."));
    assert!(equal_in("He has 2+3=5.\n#### 5", "#### 5"));
    assert!(!equal_in("5", "I do not know."));
}
