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

fn corpus() -> Vec<Pair> {
    serde_json::from_str(include_str!("../../../tests/oracle/math_pairs.json")).unwrap()
}

#[test]
fn verdicts_agree_with_math_verify() {
    let pairs = corpus();
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
fn every_right_answer_equals_itself() {
    let pairs = corpus();
    let more = [
        r"-5\%",
        r"33\frac{1}{3}\%",
        "n!",
        "(n-1)!",
        r"\binom{2n}{n}",
        r"\frac{n!}{k!(n-k)!}",
        "2023!",
        r"\binom{2024}{1012}",
        r"\frac12\begin{pmatrix}1\\2\end{pmatrix}",
        "(1,2)^T",
        r"\arcsin x",
        "A(1,2)",
        "(x,y)=(1,2)",
        "f(x,y)=x+y",
        r"\pm 1, \pm 2",
        "e^{1000}",
        r"3:00\text{ AM}",
        "x=y=5",
        "P(A)=5",
        r"\angle ABC",
    ];
    for right in pairs.iter().map(|pair| pair.right.as_str()).chain(more) {
        assert!(equal(right, right), "{right}");
        // Other spaces make other letters, of which the meaning is the same.
        let spaced = right.replace('=', " = ").replace('{', "{ ");
        assert!(equal(right, &spaced) || right.contains(r"\begin"), "{right} and {spaced}");
    }
}

#[test]
fn what_is_written_otherwise_is_the_same() {
    for (right, given) in [
        ("5", "x = 2+3 = 5"),
        ("x=5", "x = 2+3 = 5"),
        ("5", "P(A)=5"),
        ("P(A)=5", "5"),
        ("5", "f(2)=5"),
        ("5", "AB = 5"),
        ("90", r"\angle ABC = 90^\circ"),
        ("5", r"\approx 5"),
        ("5", r"x \approx 5"),
        ("(3,4)", "(x,y)=(3,4)"),
        (r"\arctan 2", r"\tan^{-1} 2"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\left[\begin{array}{cc}1&2\\3&4\end{array}\right]"),
        (r"\begin{pmatrix}\frac12\\1\end{pmatrix}", r"\frac12\begin{pmatrix}1\\2\end{pmatrix}"),
        ("0.75", r"{3 \over 4}"),
        ("15", "15 m"),
        ("15", "15 s"),
        ("15", "15 sec"),
        ("9.8", "9.8 m/s^2"),
        (r"-5\%", "-0.05"),
        (r"33\frac{1}{3}\%", r"\frac13"),
        ("n!", "n(n-1)!"),
        (r"\binom{n}{k}", r"\frac{n!}{k!(n-k)!}"),
        (r"\binom{2024}{1012}", r"\frac{2024!}{1012!1012!}"),
        (r"\arcsin x", r"\frac{\pi}{2}-\arccos x"),
        (r"\pm 1, \pm 2", "2,1,-1,-2"),
        ("2{,}500{,}000", r"2.5\text{ million}"),
        ("30", "10 times 3"),
        ("0.25", "25 percent"),
        ("15", "15 miles per hour"),
        ("ab", r"a\cdot b"),
        ("0", r"\sin\pi"),
        ("0.142857", "1/7"),
    ] {
        assert!(equal(right, given), "{right} and {given}");
    }
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
        ("3 hours 20 minutes", "3 hours 45 minutes"),
        ("3 hours", "3 hours 20 minutes"),
        ("1.5 hours and 2 minutes", "15 hours and 2 minutes"),
        (r"3\text{ hours }20\text{ minutes}", r"3\text{ hours }45\text{ minutes}"),
        ("5 feet 3 inches", "5 feet 11 inches"),
        ("12 March 2020", "12 June 1999"),
        ("7 students and 3 teachers", "7 students and 5 teachers"),
        ("2 million", "2 billion"),
        ("3", "3 thousand"),
        ("10", "10 times 3"),
        ("3", "3 and a half"),
        (r"1.6\times10^{-19}", "0"),
        (r"6.63\times10^{-34}", r"1.0\times10^{-7}"),
        ("0.0000001", "0"),
        ("BAC", "ABC"),
        ("dog", "god"),
        (r"\text{ AM}", r"\text{ PM}"),
        (r"3:00\text{ AM}", r"3:00\text{ PM}"),
        ("5", "5 n"),
        ("x=y=5", "x=z=5"),
        ("e^{1000}", "e^{1001}"),
        ("n!", "(n+1)!"),
        ("(1,2)^T", "(2,1)^T"),
        ("0", "x^2-1=0"),
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
