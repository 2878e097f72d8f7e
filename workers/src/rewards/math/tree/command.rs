//! Commands and their arguments.

use super::super::token::Token;
use super::{Expr, Parser};

const FUNCTIONS: [&str; 13] =
    ["sin", "cos", "tan", "cot", "sec", "csc", "ln", "exp", "arcsin", "arccos", "arctan", "sinh", "cosh"];
const GREEK: [&str; 16] = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "varepsilon",
    "theta",
    "lambda",
    "mu",
    "rho",
    "sigma",
    "tau",
    "phi",
    "varphi",
    "omega",
    "psi",
];

/// `\tan^{-1} 2` is an angle, not a quotient.
fn inverse(name: &str, argument: Expr) -> Expr {
    let function = |name: &str, of| Expr::Function(name.to_owned(), Box::new(of));
    let one = Box::new(Expr::Number("1".to_owned()));
    match name {
        "cot" => function("arctan", Expr::Divide(one, Box::new(argument))),
        "sec" => function("arccos", Expr::Divide(one, Box::new(argument))),
        "csc" => function("arcsin", Expr::Divide(one, Box::new(argument))),
        "ln" | "exp" => Expr::Divide(one, Box::new(function(name, argument))),
        name => function(&format!("arc{name}"), argument),
    }
}

impl Parser {
    /// The argument of a command: braces, or the next digit, letter or command.
    pub(super) fn argument(&mut self) -> Option<Expr> {
        if self.sign('{') {
            let inner = self.list('}')?;
            return self.sign('}').then_some(inner);
        }
        self.sign(' ');
        if let Some(Token::Number(digits)) = self.peek().cloned() {
            // Both arguments of \frac12 are digits.
            let mut rest = digits;
            let first = rest.remove(0).to_string();
            if rest.is_empty() {
                self.at += 1;
            } else {
                self.tokens[self.at] = Token::Number(rest);
            }
            return Some(Expr::Number(first));
        }
        if self.sign('-') {
            return Some(Expr::Negate(Box::new(self.argument()?)));
        }
        self.atom()
    }

    pub(super) fn command(&mut self, word: &str) -> Option<Expr> {
        let function = |name: &str, of: Expr| Expr::Function(name.to_owned(), Box::new(of));
        match word {
            "frac" => Some(Expr::Divide(Box::new(self.argument()?), Box::new(self.argument()?))),
            "sqrt" => {
                let degree = if self.sign('[') {
                    let degree = self.sum()?;
                    self.sign(']').then_some(degree)?
                } else {
                    Expr::Number("2".to_owned())
                };
                let one = Box::new(Expr::Number("1".to_owned()));
                let exponent = Expr::Divide(one, Box::new(degree));
                Some(Expr::Power(Box::new(self.argument()?), Box::new(exponent)))
            }
            "pi" => Some(Expr::Constant("pi")),
            "infty" => Some(Expr::Constant("infty")),
            "emptyset" => Some(Expr::Group('{', Vec::new(), '}')),
            "binom" => {
                let (n, k) = (self.argument()?, self.argument()?);
                Some(function("binomial", Expr::Group(' ', vec![n, k], ' ')))
            }
            "{" => {
                let inner = self.list('}')?;
                let items = match inner {
                    Expr::Group(' ', items, ' ') => items,
                    one => vec![one],
                };
                self.word("}").then_some(Expr::Group('{', items, '}'))
            }
            "lfloor" | "lceil" => {
                let inner = self.sum()?;
                let name = word.trim_start_matches('l');
                self.word(&format!("r{name}")).then(|| function(name, inner))
            }
            "log" => {
                let base = if self.sign('_') { self.exponent()? } else { Expr::Number("10".to_owned()) };
                let of = self.function_argument()?;
                Some(Expr::Divide(Box::new(function("ln", of)), Box::new(function("ln", base))))
            }
            "begin" => self.matrix(),
            name if FUNCTIONS.contains(&name) => {
                let power = if self.sign('^') { Some(self.exponent()?) } else { None };
                let argument = self.function_argument()?;
                let minus_one = Expr::Negate(Box::new(Expr::Number("1".to_owned())));
                if power.as_ref() == Some(&minus_one) {
                    return Some(inverse(name, argument));
                }
                let applied = function(name, argument);
                Some(match power {
                    Some(power) => Expr::Power(Box::new(applied), Box::new(power)),
                    None => applied,
                })
            }
            // Greek letters are variables; other commands are unknown.
            name if name.len() > 1 && name.chars().all(char::is_alphabetic) && GREEK.contains(&name) => {
                self.letter(name.to_owned())
            }
            _ => None,
        }
    }

    /// The argument of a function: a bracket, or all factors that follow.
    fn function_argument(&mut self) -> Option<Expr> {
        self.sign(' ');
        if matches!(self.peek(), Some(Token::Sign('(' | '{' | '['))) {
            return self.power();
        }
        let mut left = self.signed()?;
        while self.begins_factor()
            && !matches!(self.peek(), Some(Token::Word(word)) if FUNCTIONS.contains(&word.as_str()))
        {
            left = Expr::Multiply(Box::new(left), Box::new(self.power()?));
        }
        Some(left)
    }

    /// Rows of a matrix, after `\begin{…}`.
    fn matrix(&mut self) -> Option<Expr> {
        let mut rows = vec![vec![self.sum()?]];
        loop {
            if self.sign('&') {
                rows.last_mut()?.push(self.sum()?);
            } else if self.word("newline") {
                if !matches!(self.peek(), Some(Token::Word(word)) if word == "end") {
                    rows.push(vec![self.sum()?]);
                }
            } else {
                let rows = rows.into_iter().map(|row| Expr::Group('&', row, '&')).collect();
                return self.word("end").then_some(Expr::Group('#', rows, '#'));
            }
        }
    }
}
