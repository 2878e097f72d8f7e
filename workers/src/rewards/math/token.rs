//! Splits LaTeX, or plain text, into tokens.

pub(super) mod unit;

/// A token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// Digits, with or without a decimal point.
    Number(String),
    /// A variable, by its letter or its name.
    Letter(String),
    /// A command or a known word: `frac`, `sqrt`, `pi`.
    Word(String),
    /// Anything else.
    Sign(char),
}

/// Commands that only affect the layout.
const ARRANGE: [&str; 27] = [
    "left",
    "right",
    "big",
    "Big",
    "bigg",
    "Bigg",
    "bigl",
    "bigr",
    "Bigl",
    "Bigr",
    "displaystyle",
    "textstyle",
    "quad",
    "qquad",
    "limits",
    "mathrm",
    "mathbf",
    "mathit",
    "mathsf",
    "boldsymbol",
    "operatorname",
    "mathbb",
    "bf",
    "rm",
    "phantom",
    "dots",
    "angle",
];
/// Commands with the same meaning.
const SAME: [(&str, &str); 20] = [
    ("dfrac", "frac"),
    ("tfrac", "frac"),
    ("cfrac", "frac"),
    ("le", "<="),
    ("leq", "<="),
    ("leqslant", "<="),
    ("ge", ">="),
    ("geq", ">="),
    ("geqslant", ">="),
    ("lt", "<"),
    ("gt", ">"),
    ("dbinom", "binom"),
    ("tbinom", "binom"),
    ("degree", "circ"),
    ("lbrace", "{"),
    ("rbrace", "}"),
    ("lvert", "|"),
    ("rvert", "|"),
    ("vert", "|"),
    ("varnothing", "emptyset"),
];
/// Words that mean something without a backslash.
const PLAIN: [&str; 16] = [
    "sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "ln", "log", "exp", "pi", "infty", "arcsin", "arccos",
    "arctan", "infinity",
];
/// The tokens; `None` if the text is prose.
pub(super) fn tokens(text: &str) -> Option<Vec<Token>> {
    let chars: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let (mut at, mut depth) = (0, 0_i32);
    while at < chars.len() {
        let c = chars[at];
        at += 1;
        match c {
            '\\' => at = command(&chars, at, &mut tokens, &mut depth)?,
            c if c.is_ascii_digit() || (c == '.' && chars.get(at).is_some_and(char::is_ascii_digit)) => {
                at = number(&chars, at - 1, depth > 0, &mut tokens);
            }
            c if c.is_alphabetic() => at = word(&chars, at - 1, &mut tokens)?,
            '$' | '~' | '&' | ' ' | '\n' | '\t' => {
                // A space separates two numbers.
                if c == '&' || matches!(tokens.last(), Some(Token::Number(_))) {
                    tokens.push(Token::Sign(if c == '&' { '&' } else { ' ' }));
                }
            }
            '−' | '–' => tokens.push(Token::Sign('-')),
            '×' | '·' => tokens.push(Token::Sign('*')),
            '÷' => tokens.push(Token::Sign('/')),
            '°' => tokens.push(Token::Word("circ".to_owned())),
            '≤' => tokens.push(Token::Word("<=".to_owned())),
            '≥' => tokens.push(Token::Word(">=".to_owned())),
            '<' | '>' if chars.get(at) == Some(&'=') => {
                tokens.push(Token::Word(format!("{c}=")));
                at += 1;
            }
            '*' if chars.get(at) == Some(&'*') => {
                tokens.push(Token::Sign('^'));
                at += 1;
            }
            'π' => tokens.push(Token::Word("pi".to_owned())),
            '≈' => tokens.push(Token::Sign('=')),
            '∞' => tokens.push(Token::Word("infty".to_owned())),
            _ => {
                depth += i32::from(matches!(c, '(' | '[')) - i32::from(matches!(c, ')' | ']'));
                tokens.push(Token::Sign(c));
            }
        }
    }
    while matches!(tokens.last(), Some(Token::Sign(' ' | '.' | ',' | ';'))) {
        tokens.pop();
    }
    spaces(&mut tokens);
    Some(tokens)
}

/// The letters of an answer that has nothing else but signs of multiplication, in their order; `None` if it has
/// other tokens, or one letter.
pub(super) fn letters<'a>(tokens: &'a [Token]) -> Option<Vec<&'a str>> {
    let letter = |token: &&Token| **token != Token::Sign('*');
    let of = |token: &'a Token| if let Token::Letter(letter) = token { Some(letter.as_str()) } else { None };
    let letters: Vec<&str> = tokens.iter().filter(letter).map(of).collect::<Option<_>>()?;
    (letters.len() > 1).then_some(letters)
}

/// Spaces matter between two numbers alone.
fn spaces(tokens: &mut Vec<Token>) {
    let mut at = 0;
    while at < tokens.len() {
        let keeps = matches!(tokens.get(at + 1), Some(Token::Number(_)));
        if tokens[at] == Token::Sign(' ') && !keeps {
            tokens.remove(at);
        } else {
            at += 1;
        }
    }
}

/// A number from `start` on. Commas between groups of three digits belong to it, except in a
/// bracket.
fn number(chars: &[char], start: usize, in_bracket: bool, tokens: &mut Vec<Token>) -> usize {
    let digit = |at: usize| chars.get(at).is_some_and(char::is_ascii_digit);
    let mut at = start;
    let mut text = String::new();
    let (mut point, mut grouped) = (false, false);
    loop {
        // 1{,}234, 1\,234 and 1\!,234 as they are typeset.
        let rest: String = chars[at.min(chars.len())..].iter().take(3).collect();
        let group = match rest.as_str() {
            "{,}" => Some(3),
            r if r.starts_with("\\,") || r.starts_with("\\!") => Some(2 + usize::from(r.ends_with(','))),
            r if r.starts_with(',') && !in_bracket => Some(1),
            _ => None,
        };
        if digit(at) {
            text.push(chars[at]);
            at += 1;
        } else if chars.get(at) == Some(&'.') && !point && (digit(at + 1) || text.is_empty()) {
            point = true;
            text.push('.');
            at += 1;
        } else if let Some(skip) = group
            && !point
            && (grouped || (1..=3).contains(&text.len()))
            && (0..3).all(|i| digit(at + skip + i))
            && !digit(at + skip + 3)
        {
            grouped = true;
            at += skip;
        } else {
            break;
        }
    }
    // 1e-3, but not 2e, which is twice Euler's number.
    if matches!(chars.get(at), Some('e' | 'E')) {
        let sign = usize::from(matches!(chars.get(at + 1), Some('-' | '+')));
        if digit(at + 1 + sign) {
            let end = (at + 1 + sign..chars.len()).find(|i| !digit(*i)).unwrap_or(chars.len());
            text.extend(&chars[at..end]);
            at = end;
        }
    }
    tokens.push(Token::Number(text));
    at
}

/// A word without a backslash. After a number a word is its unit.
fn word(chars: &[char], start: usize, tokens: &mut Vec<Token>) -> Option<usize> {
    let end = (start..chars.len()).find(|at| !chars[*at].is_alphabetic()).unwrap_or(chars.len());
    let word: String = chars[start..end].iter().collect();
    let lower = word.to_lowercase();
    match lower.as_str() {
        "and" | "or" => tokens.push(Token::Sign(',')),
        "infinity" => tokens.push(Token::Word("infty".to_owned())),
        known if PLAIN.contains(&known) => tokens.push(Token::Word(lower)),
        _ if word.chars().count() == 1 => tokens.push(Token::Letter(lower)),
        word if unit::is_unit(word) && !tokens.is_empty() => {
            return if measures(tokens.last()) { unit::skip(chars, start, tokens) } else { None };
        }
        _ if word.chars().count() > 3 => return None,
        _ => tokens.extend(lower.chars().map(|c| Token::Letter(c.to_string()))),
    }
    Some(end)
}

/// A command after its backslash.
fn command(chars: &[char], start: usize, tokens: &mut Vec<Token>, depth: &mut i32) -> Option<usize> {
    let end = (start..chars.len()).find(|at| !chars[*at].is_ascii_alphabetic()).unwrap_or(chars.len());
    if end == start {
        match chars.get(start) {
            Some('\\') => tokens.push(Token::Word("newline".to_owned())),
            Some(brace @ ('{' | '}')) => {
                *depth += if *brace == '{' { 1 } else { -1 };
                tokens.push(Token::Word(brace.to_string()));
            }
            Some('%') => tokens.push(Token::Sign('%')),
            // `\,`, `\!`, `\;`, `\ `, `\$` and their like.
            Some(_) | None => {}
        }
        return Some(start + 1);
    }
    let closed = |from: usize| (from..chars.len()).find(|at| chars[*at] == '}');
    let name: String = chars[start..end].iter().collect();
    match name.as_str() {
        "text" | "textbf" | "textit" | "textrm" | "mbox" | "mathrm" | "hbox" | "textnormal" => {
            return text(chars, end, tokens);
        }
        "begin" | "end" => {
            let close = closed(end)?;
            let name_of = chars[end..close].iter().collect::<String>();
            let columns = name == "begin" && name_of.ends_with("array") && chars.get(close + 1) == Some(&'{');
            tokens.push(Token::Word(name));
            return Some(if columns { closed(close + 1)? } else { close } + 1);
        }
        "cdot" | "times" | "ast" => tokens.push(Token::Sign('*')),
        "approx" => tokens.push(Token::Sign('=')),
        "div" => tokens.push(Token::Sign('/')),
        known if ARRANGE.contains(&known) => {
            // `\left.` and `\right.` stand for no bracket.
            let none = matches!(known, "left" | "right") && chars.get(end) == Some(&'.');
            return Some(end + usize::from(none));
        }
        known => match SAME.iter().find(|(other, _)| *other == known) {
            Some((_, "|")) => tokens.push(Token::Sign('|')),
            Some((_, same)) => tokens.push(Token::Word((*same).to_owned())),
            None => tokens.push(Token::Word(name)),
        },
    }
    Some(end)
}

/// Whether a unit may follow it.
fn measures(token: Option<&Token>) -> bool {
    matches!(token, Some(Token::Number(_) | Token::Sign(' ' | ')' | '}') | Token::Word(_)))
}

/// `\text{…}`: words that join answers join them; a letter or number is one; other words are a
/// unit, or the answer itself.
fn text(chars: &[char], start: usize, tokens: &mut Vec<Token>) -> Option<usize> {
    let open = (start..chars.len()).find(|at| chars[*at] != ' ')?;
    if chars[open] != '{' {
        return Some(start);
    }
    let close = (open..chars.len()).find(|at| chars[*at] == '}')?;
    let inner: String = chars[open + 1..close].iter().collect();
    let inner = inner.trim_matches([' ', '~', '\\', ',']);
    match inner.to_lowercase().as_str() {
        "and" | "or" => tokens.push(Token::Sign(',')),
        _ if !measures(tokens.last())
            && (inner.trim_matches(['(', ')', '.']).chars().count() <= 1 || inner.parse::<f64>().is_ok()) =>
        {
            let inner = inner.trim_matches(['(', ')', '.']);
            tokens.extend(self::tokens(inner)?);
        }
        _ if tokens.is_empty() => return None,
        _ => {
            unit::within(inner, tokens)?;
            // A power of a unit, cm^2.
            if chars.get(close + 1) == Some(&'^') {
                let brace = chars.get(close + 2) == Some(&'{');
                return Some(close + if brace { 5 } else { 3 });
            }
        }
    }
    Some(close + 1)
}
