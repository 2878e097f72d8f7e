//! Tokens to an expression: precedence climbing over sums, products, signs and powers.

use super::token::Token;
use super::value::has_symbols;

mod command;

/// An expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expr {
    /// A number as it was written.
    Number(String),
    /// A variable.
    Symbol(String),
    /// π, e, i or ∞ by name.
    Constant(&'static str),
    /// A sum.
    Add(Box<Expr>, Box<Expr>),
    /// A product.
    Multiply(Box<Expr>, Box<Expr>),
    /// A quotient.
    Divide(Box<Expr>, Box<Expr>),
    /// Base and exponent.
    Power(Box<Expr>, Box<Expr>),
    /// The negative.
    Negate(Box<Expr>),
    /// A percentage, or the plain number.
    Percent(Box<Expr>),
    /// An angle in degrees.
    Degrees(Box<Expr>),
    /// A function of one argument, by name.
    Function(String, Box<Expr>),
    /// ±.
    PlusMinus(Option<Box<Expr>>, Box<Expr>),
    /// A list, in brackets of these kinds; ' ' for none.
    Group(char, Vec<Expr>, char),
    /// Two sides of `=`, `<` or `<=`.
    Relation(&'static str, Box<Expr>, Box<Expr>),
    /// A union of sets.
    Union(Vec<Expr>),
}

/// Parses an expression; `None` if the tokens are none.
pub(super) fn parse(tokens: Vec<Token>) -> Option<Expr> {
    if tokens.len() > MOST {
        return None;
    }
    let mut parser = Parser { tokens, at: 0, bars: 0, depth: 0 };
    let expr = parser.list(' ')?;
    (parser.at == parser.tokens.len()).then_some(expr)
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    /// Open `|`, within which another closes.
    bars: u32,
    depth: u32,
}

/// Tokens of an answer at most. An expression is no deeper than it is long, and is computed by
/// recursion.
const MOST: usize = 512;
/// Brackets in brackets at most.
const DEEP: u32 = 64;

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn sign(&mut self, c: char) -> bool {
        let there = self.peek() == Some(&Token::Sign(c));
        self.at += usize::from(there);
        there
    }

    fn word(&mut self, name: &str) -> bool {
        let there = matches!(self.peek(), Some(Token::Word(word)) if word == name);
        self.at += usize::from(there);
        there
    }

    /// A list separated by commas; a single expression is itself.
    fn list(&mut self, close: char) -> Option<Expr> {
        self.depth += 1;
        if self.depth > DEEP {
            return None;
        }
        let mut items = vec![self.relation()?];
        while self.sign(',') || self.sign(';') {
            if close != ' ' || self.peek().is_some() {
                items.push(self.relation()?);
            }
        }
        self.depth -= 1;
        Some(if items.len() == 1 { items.remove(0) } else { Expr::Group(' ', items, ' ') })
    }

    fn relation(&mut self) -> Option<Expr> {
        // `= 5` and `≈ 5` are 5.
        self.sign('=');
        let first = self.union()?;
        let Some(sign) = self.relation_sign() else { return Some(first) };
        let second = self.union()?;
        if sign == "=" && self.peek() == Some(&Token::Sign('=')) {
            return self.chain(first, second);
        }
        let one = related(sign, first.clone(), second.clone());
        let Some(next) = self.relation_sign() else { return Some(one) };
        // a < x < b is an interval.
        let third = self.union()?;
        if self.relation_sign().is_some() || sign == "=" || next == "=" || !matches!(second, Expr::Symbol(_))
        {
            return None;
        }
        let (low, high) = (sign, next);
        let bracket = |sign: &str, closed, open| if sign.ends_with('=') { closed } else { open };
        match (low.starts_with('<'), high.starts_with('<')) {
            (true, true) => {
                Some(Expr::Group(bracket(low, '[', '('), vec![first, third], bracket(high, ']', ')')))
            }
            (false, false) => {
                Some(Expr::Group(bracket(high, '[', '('), vec![third, first], bracket(low, ']', ')')))
            }
            _ => None,
        }
    }

    /// a = b = c, as a relation to a relation. What was computed on the way to the last side is left out.
    fn chain(&mut self, first: Expr, second: Expr) -> Option<Expr> {
        let mut sides = vec![first, second];
        while self.sign('=') {
            sides.push(self.union()?);
        }
        let mut chain = sides.pop()?;
        let first = sides.remove(0);
        for side in sides.into_iter().rev().filter(has_symbols) {
            chain = related("=", side, chain);
        }
        self.relation_sign().is_none().then(|| related("=", first, chain))
    }

    fn relation_sign(&mut self) -> Option<&'static str> {
        let sign = match self.peek()? {
            Token::Sign('=') => "=",
            Token::Sign('<') => "<",
            Token::Sign('>') => ">",
            Token::Word(word) if word == "in" => "=",
            Token::Word(word) => *["<=", ">=", "<", ">"].iter().find(|sign| *sign == word)?,
            _ => return None,
        };
        self.at += 1;
        Some(sign)
    }

    fn union(&mut self) -> Option<Expr> {
        let mut parts = vec![self.sum()?];
        while self.word("cup") {
            parts.push(self.sum()?);
        }
        Some(if parts.len() == 1 { parts.remove(0) } else { Expr::Union(parts) })
    }

    /// A sum, or a quotient of two as TeX has it: `{a \over b}`.
    fn sum(&mut self) -> Option<Expr> {
        let above = self.terms()?;
        if !self.word("over") {
            return Some(above);
        }
        Some(Expr::Divide(Box::new(above), Box::new(self.terms()?)))
    }

    fn terms(&mut self) -> Option<Expr> {
        let mut left =
            if self.word("pm") { Expr::PlusMinus(None, Box::new(self.product()?)) } else { self.product()? };
        loop {
            if self.sign('+') {
                left = Expr::Add(Box::new(left), Box::new(self.product()?));
            } else if self.sign('-') {
                left = Expr::Add(Box::new(left), Box::new(Expr::Negate(Box::new(self.product()?))));
            } else if self.word("pm") {
                left = Expr::PlusMinus(Some(Box::new(left)), Box::new(self.product()?));
            } else {
                return Some(left);
            }
        }
    }

    fn product(&mut self) -> Option<Expr> {
        let mut left = self.signed()?;
        loop {
            if self.sign('*') {
                left = Expr::Multiply(Box::new(left), Box::new(self.signed()?));
            } else if self.sign('/') || self.sign(':') {
                left = Expr::Divide(Box::new(left), Box::new(self.signed()?));
            } else if self.begins_factor() {
                left = if matches!(left, Expr::Number(_)) && self.is_plain_fraction() {
                    self.mixed(left)?
                } else {
                    Expr::Multiply(Box::new(left), Box::new(self.power()?))
                };
            } else if self.is_spaced_fraction(&left) {
                // 3 1/2
                self.at += 1;
                let above = self.atom()?;
                self.at += 1;
                let right = Expr::Divide(Box::new(above), Box::new(self.atom()?));
                left = self.after(Expr::Add(Box::new(left), Box::new(right)))?;
            } else {
                return Some(left);
            }
        }
    }

    fn signed(&mut self) -> Option<Expr> {
        if self.sign('-') {
            self.depth += 1;
            if self.depth > DEEP {
                return None;
            }
            let inner = self.signed()?;
            self.depth -= 1;
            // −1 1/2 is −(1 + 1/2).
            let is_number = matches!(inner, Expr::Number(_));
            if is_number && self.begins_factor() && self.is_plain_fraction() {
                return Some(Expr::Negate(Box::new(self.mixed(inner)?)));
            }
            return Some(Expr::Negate(Box::new(inner)));
        }
        if self.sign('+') {
            return self.signed();
        }
        self.power()
    }

    /// Whether what follows multiplies without a sign. Two numbers side by side do not.
    fn begins_factor(&self) -> bool {
        match self.peek() {
            Some(Token::Letter(_)) => true,
            Some(Token::Sign(c)) => matches!(c, '(' | '{') || (*c == '|' && self.bars == 0),
            Some(Token::Word(word)) => {
                let joins = [
                    "pm", "cup", "<=", ">=", "<", ">", "in", "circ", "}", "newline", "end", "rfloor",
                    "rceil", "over",
                ];
                !joins.contains(&word.as_str())
            }
            Some(Token::Number(_)) => matches!(
                self.at.checked_sub(1).map(|before| &self.tokens[before]),
                Some(Token::Letter(_) | Token::Word(_) | Token::Sign(')' | '}' | '!'))
            ),
            None => false,
        }
    }

    /// Whether a fraction of two plain numbers follows, as in 1½.
    fn is_plain_fraction(&self) -> bool {
        let plain = |at: usize| match self.tokens.get(at) {
            Some(Token::Number(_)) => Some(at + 1),
            Some(Token::Sign('{')) => {
                let number = matches!(self.tokens.get(at + 1), Some(Token::Number(_)));
                (number && self.tokens.get(at + 2) == Some(&Token::Sign('}'))).then_some(at + 3)
            }
            _ => None,
        };
        let frac = matches!(self.peek(), Some(Token::Word(word)) if word == "frac");
        // \frac12 has both in one.
        let both = matches!(self.tokens.get(self.at + 1), Some(Token::Number(digits)) if digits.len() == 2);
        let two = |next| matches!(self.tokens.get(next), Some(Token::Sign('{') | Token::Number(_)));
        frac && (both || plain(self.at + 1).is_some_and(two))
    }

    fn is_spaced_fraction(&self, left: &Expr) -> bool {
        let at = |offset: usize| self.tokens.get(self.at + offset);
        matches!(left, Expr::Number(_))
            && at(0) == Some(&Token::Sign(' '))
            && matches!(
                (at(1), at(2), at(3)),
                (Some(Token::Number(_)), Some(Token::Sign('/')), Some(Token::Number(_)))
            )
    }

    /// A whole number and the fraction that follows it. A percent sign or an exponent belongs to both.
    fn mixed(&mut self, whole: Expr) -> Option<Expr> {
        let fraction = self.atom()?;
        self.after(Expr::Add(Box::new(whole), Box::new(fraction)))
    }

    fn power(&mut self) -> Option<Expr> {
        let base = self.atom()?;
        self.after(base)
    }

    /// A base with its exponents, degrees, `!` and `%`.
    fn after(&mut self, mut base: Expr) -> Option<Expr> {
        loop {
            if self.sign('^') {
                let degrees = self.word("circ") || self.braced_circle();
                base = if degrees {
                    Expr::Degrees(Box::new(base))
                } else {
                    Expr::Power(Box::new(base), Box::new(self.exponent()?))
                };
            } else if self.word("circ") {
                base = Expr::Degrees(Box::new(base));
            } else if self.sign('!') {
                base = Expr::Function("factorial".to_owned(), Box::new(base));
            } else if self.sign('%') {
                base = Expr::Percent(Box::new(base));
            } else {
                return Some(base);
            }
        }
    }

    fn braced_circle(&mut self) -> bool {
        let circle = [Token::Sign('{'), Token::Word("circ".to_owned()), Token::Sign('}')];
        let there = self.tokens[self.at..].starts_with(&circle);
        self.at += if there { circle.len() } else { 0 };
        there
    }

    /// An exponent: all digits of a number, as people write it.
    fn exponent(&mut self) -> Option<Expr> {
        self.number().or_else(|| self.argument())
    }

    fn number(&mut self) -> Option<Expr> {
        let Some(Token::Number(digits)) = self.peek() else { return None };
        let number = Expr::Number(digits.clone());
        self.at += 1;
        Some(number)
    }

    fn atom(&mut self) -> Option<Expr> {
        let token = self.peek()?.clone();
        self.at += 1;
        match token {
            Token::Number(digits) => Some(Expr::Number(digits)),
            Token::Letter(name) => self.letter(name),
            Token::Word(word) => self.command(&word),
            Token::Sign('{') => {
                let inner = self.list('}')?;
                // Braces around a list are a set.
                let set = match inner {
                    Expr::Group(' ', items, ' ') => Expr::Group('{', items, '}'),
                    one => one,
                };
                self.sign('}').then_some(set)
            }
            Token::Sign(open @ ('(' | '[')) => self.bracket(open),
            Token::Sign('|') => {
                self.bars += 1;
                let inner = self.sum()?;
                self.bars -= 1;
                self.sign('|').then(|| Expr::Function("abs".to_owned(), Box::new(inner)))
            }
            Token::Sign(_) => None,
        }
    }

    fn letter(&mut self, name: String) -> Option<Expr> {
        if self.sign('_') {
            let index = self.argument()?;
            return Some(Expr::Symbol(format!("{name}_{index:?}")));
        }
        Some(match name.as_str() {
            "e" => Expr::Constant("e"),
            "i" => Expr::Constant("i"),
            "π" => Expr::Constant("pi"),
            "∞" => Expr::Constant("infty"),
            _ => Expr::Symbol(name),
        })
    }

    fn bracket(&mut self, open: char) -> Option<Expr> {
        let bars = std::mem::take(&mut self.bars);
        let inner = self.list(')')?;
        self.bars = bars;
        let close = [')', ']'].into_iter().find(|close| self.sign(*close))?;
        match inner {
            Expr::Group(' ', items, ' ') => Some(Expr::Group(open, items, close)),
            one if (open, close) == ('(', ')') || (open, close) == ('[', ']') => Some(one),
            _ => None,
        }
    }
}

/// The larger side second.
fn related(sign: &'static str, first: Expr, second: Expr) -> Expr {
    let (first, second) = (Box::new(first), Box::new(second));
    match sign {
        ">" => Expr::Relation("<", second, first),
        ">=" => Expr::Relation("<=", second, first),
        same => Expr::Relation(same, first, second),
    }
}
