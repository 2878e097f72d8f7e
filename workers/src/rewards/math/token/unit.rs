//! Units after a number. A unit is left out. Words that count more than that are kept: `2 million` is a
//! number, and `3 hours 20 minutes` is prose, because without its words it would be 3.

use super::Token;

/// Units that are shorter than a word, and mean nothing else after a number.
const UNITS: [&str; 18] = [
    "cm", "mm", "km", "kg", "mg", "ml", "lb", "lbs", "ft", "in", "yd", "mi", "mph", "hr", "hrs", "min",
    "sec", "km/h",
];
/// Units of one letter, which are variables except after a number and a space. Case tells them apart.
const LETTERS: [&str; 16] = ["m", "s", "g", "h", "d", "t", "l", "L", "N", "J", "W", "V", "A", "K", "C", "F"];
/// Words that multiply the number before them.
const SCALES: [(&str, &str); 6] = [
    ("hundred", "100"),
    ("thousand", "1000"),
    ("million", "1000000"),
    ("billion", "1000000000"),
    ("trillion", "1000000000000"),
    ("dozen", "12"),
];
/// Words after which an answer has more than one number and its unit.
const MORE: [&str; 48] = [
    "and",
    "or",
    "plus",
    "minus",
    "to",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
    "thirty",
    "forty",
    "fifty",
    "sixty",
    "seventy",
    "eighty",
    "ninety",
    "half",
    "halves",
    "third",
    "thirds",
    "quarter",
    "quarters",
    "squared",
    "cubed",
    "divided",
    "am",
    "pm",
    "ad",
    "bc",
    "ce",
    "bce",
    "not",
];

/// Whether a word in lower case is a unit after a number, and not a product of variables.
pub(super) fn is_unit(word: &str) -> bool {
    UNITS.contains(&word) || word.chars().count() > 3
}

/// Skips the words of a unit from `at` on, with slashes and powers, and gives what they count to
/// `tokens`. `None` if they are prose: another number follows, or "and".
pub(super) fn skip(chars: &[char], mut at: usize, tokens: &mut Vec<Token>) -> Option<usize> {
    let letter = |at: usize| chars.get(at).is_some_and(|c| c.is_alphabetic());
    loop {
        match chars.get(at) {
            Some(c) if c.is_alphabetic() => {
                let end = (at..chars.len()).find(|at| !letter(*at)).unwrap_or(chars.len());
                let word: String = chars[at..end].iter().collect::<String>().to_lowercase();
                at = end;
                if word == "times" {
                    tokens.push(Token::Sign('*'));
                    return Some(at);
                }
                meaning(&word, tokens)?;
                // m2 is m².
                at += usize::from(matches!(chars.get(at), Some('2' | '3' | '²' | '³')));
            }
            Some(' ' | '~') => at += 1,
            Some('/') if letter(at + 1) => at += 1,
            Some('^') => at = power(chars, at + 1),
            Some(c) if c.is_ascii_digit() => return None,
            _ => return Some(at),
        }
    }
}

/// The same within `\text{…}`, of which nothing is left over.
pub(super) fn within(text: &str, tokens: &mut Vec<Token>) -> Option<()> {
    let chars: Vec<char> = text.chars().filter(|c| *c != '.').collect();
    let mut at = 0;
    while at < chars.len() {
        at = skip(&chars, at, tokens)? + 1;
    }
    Some(())
}

/// What a word after a number does to it.
fn meaning(word: &str, tokens: &mut Vec<Token>) -> Option<()> {
    let one = word.strip_suffix('s').unwrap_or(word);
    if MORE.contains(&word) {
        return None;
    }
    if let Some((_, number)) = SCALES.iter().find(|(scale, _)| *scale == one) {
        tokens.extend([Token::Sign('*'), Token::Number((*number).to_owned())]);
    } else if word == "percent" {
        tokens.push(Token::Sign('%'));
    }
    Some(())
}

/// The end of the exponent of a unit: digits, in braces or not.
fn power(chars: &[char], start: usize) -> usize {
    let inside = |c: &char| c.is_ascii_digit() || matches!(c, '{' | '}' | '-');
    let mut at = start;
    while chars.get(at).is_some_and(inside) {
        at += 1;
        if chars.get(at - 1) == Some(&'}') {
            break;
        }
    }
    at
}

/// What stands before a unit of one letter, or of several such: `15 m`, `9.8 m/s^2`, `15 sec`. Without a
/// space it is a variable.
pub(in super::super) fn before_letters(text: &str) -> Option<&str> {
    let (number, unit) = text.rsplit_once([' ', '~'])?;
    let is_part = |part: &str| {
        let letters = part.trim_end_matches(['^', '{', '}', '-', '1', '2', '3', '²', '³']);
        LETTERS.contains(&letters) || UNITS.contains(&letters)
    };
    let number = number.trim_end_matches([' ', '~', '\\']);
    (unit.split(['/', '·', '*']).all(is_part) && number.ends_with(|c: char| c.is_ascii_digit() || c == '}'))
        .then_some(number)
}
