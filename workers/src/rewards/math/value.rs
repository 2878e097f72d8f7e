//! The value of an expression at given values of its variables: exact, in the integers modulo a
//! prime, if it has only sums, products, quotients and integer powers; else in complex numbers.
//!
//! Two such quotients that agree at random points of a large field are equal, except with a
//! probability of their degree over the field's size: Schwartz, "Fast Probabilistic Algorithms for Verification of
//! Polynomial Identities", 1980.

use millrace_policy::random::fnv1a;

use super::tree::Expr;

/// The largest prime below 2^61 that is 2^61 − 1; a Mersenne prime.
const PRIME: u128 = (1 << 61) - 1;
/// Integer powers above it are not computed.
const MAX_POWER: f64 = 1e6;

/// The points at which expressions are compared.
pub(super) const POINTS: u64 = 6;

/// A pseudo-random number that depends on the name (in any case) and the point alone: FNV-1a, then
/// SplitMix64's finaliser.
fn drawn(name: &str, point: u64) -> u64 {
    let x = fnv1a(name).wrapping_add(point.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The value modulo the prime; `None` if it is undefined or not exact.
pub(super) fn exact(expr: &Expr, point: u64) -> Option<u64> {
    use Expr::{Add, Degrees, Divide, Function, Multiply, Negate, Number, Power, Symbol};
    let of = |expr: &Expr| exact(expr, point);
    match expr {
        Number(digits) => decimal(digits),
        Symbol(name) => Some((u128::from(drawn(name, point)) % PRIME) as u64),
        Add(a, b) => Some(add(of(a)?, of(b)?)),
        Negate(a) => Some(add(0, PRIME as u64 - of(a)?)),
        Multiply(a, b) => Some(multiply(of(a)?, of(b)?)),
        Divide(a, b) => {
            let (above, below) = (of(a)?, of(b)?);
            (below != 0).then(|| multiply(above, inverse(below)))
        }
        Power(a, b) => {
            of(b)?;
            let power = whole(b)?;
            let base = of(a)?;
            let raised = raise(base, power.unsigned_abs());
            if power >= 0 { Some(raised) } else { (raised != 0).then(|| inverse(raised)) }
        }
        Degrees(a) => of(a),
        Function(name, of) if name == "factorial" || name == "binomial" => {
            let value = complex(&Function(name.clone(), of.clone()), point)?;
            (value.re.abs() < 9e15).then_some((value.re as u128 % PRIME) as u64)
        }
        _ => None,
    }
}

fn add(a: u64, b: u64) -> u64 {
    ((u128::from(a) + u128::from(b)) % PRIME) as u64
}

fn multiply(a: u64, b: u64) -> u64 {
    (u128::from(a) * u128::from(b) % PRIME) as u64
}

fn raise(mut base: u64, mut power: u64) -> u64 {
    let mut product = 1;
    while power > 0 {
        if power % 2 == 1 {
            product = multiply(product, base);
        }
        base = multiply(base, base);
        power /= 2;
    }
    product
}

/// By Fermat's little theorem.
fn inverse(a: u64) -> u64 {
    raise(a, (PRIME - 2) as u64)
}

/// A number as it was written, exactly.
fn decimal(digits: &str) -> Option<u64> {
    let (digits, power) = match digits.split_once(['e', 'E']) {
        Some((digits, power)) => (digits, power.parse::<i64>().ok()?),
        None => (digits, 0),
    };
    let places = digits.split_once('.').map_or(0, |(_, after)| after.len() as i64);
    let whole = digits
        .chars()
        .filter(char::is_ascii_digit)
        .try_fold(0, |sum, digit| Some(add(multiply(sum, 10), u64::from(digit.to_digit(10)?))))?;
    let power = power - places;
    if power.abs() as f64 > MAX_POWER {
        return None;
    }
    let scale = raise(10, power.unsigned_abs());
    Some(multiply(whole, if power < 0 { inverse(scale) } else { scale }))
}

/// The value of an exponent without variables, if it is an integer.
fn whole(expr: &Expr) -> Option<i64> {
    if has_symbols(expr) {
        return None;
    }
    let value = complex(expr, 0)?;
    let near = value.re.round();
    ((value.re - near).abs() < 1e-9 && value.im.abs() < 1e-9 && near.abs() <= MAX_POWER)
        .then_some(near as i64)
}

/// Whether it has variables.
pub(super) fn has_symbols(expr: &Expr) -> bool {
    any(expr, &|expr| matches!(expr, Expr::Symbol(_)))
}

/// Whether it has a decimal number.
pub(super) fn has_decimals(expr: &Expr) -> bool {
    any(expr, &|expr| matches!(expr, Expr::Number(digits) if digits.contains('.')))
}

/// Whether a part of it satisfies the condition.
pub(super) fn any(expr: &Expr, is: &dyn Fn(&Expr) -> bool) -> bool {
    use Expr::{
        Add, Constant, Degrees, Divide, Function, Group, Multiply, Negate, Number, Percent, PlusMinus, Power,
        Relation, Symbol, Union,
    };
    is(expr)
        || match expr {
            Number(_) | Symbol(_) | Constant(_) => false,
            Add(a, b) | Multiply(a, b) | Divide(a, b) | Power(a, b) | Relation(_, a, b) => {
                any(a, is) || any(b, is)
            }
            Negate(a) | Percent(a) | Degrees(a) | Function(_, a) => any(a, is),
            PlusMinus(a, b) => a.as_ref().is_some_and(|a| any(a, is)) || any(b, is),
            Group(_, items, _) | Union(items) => items.iter().any(|item| any(item, is)),
        }
}

/// A complex number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Complex {
    pub(super) re: f64,
    pub(super) im: f64,
}

const fn real(re: f64) -> Complex {
    Complex { re, im: 0.0 }
}

/// The value in complex numbers; `None` if it is undefined.
pub(super) fn complex(expr: &Expr, point: u64) -> Option<Complex> {
    use Expr::{Add, Constant, Degrees, Divide, Function, Multiply, Negate, Number, Power, Symbol};
    let of = |expr: &Expr| complex(expr, point);
    let value = match expr {
        Number(digits) => real(digits.parse().ok()?),
        // Between −3 and 3: small enough for powers, of either sign.
        Symbol(name) => real((drawn(name, point) >> 11) as f64 / (1_u64 << 53) as f64 * 6.0 - 3.0),
        Constant("pi") => real(std::f64::consts::PI),
        Constant("e") => real(std::f64::consts::E),
        Constant("i") => Complex { re: 0.0, im: 1.0 },
        Add(a, b) => of(a)?.plus(of(b)?),
        Negate(a) => real(0.0).minus(of(a)?),
        Multiply(a, b) => of(a)?.times(of(b)?),
        Divide(a, b) => of(a)?.over(of(b)?),
        Power(a, b) => of(a)?.to(of(b)?),
        Degrees(a) => of(a)?,
        Function(name, argument) => return function(name, argument, point),
        _ => return None,
    };
    (value.re.is_finite() && value.im.is_finite()).then_some(value)
}

fn function(name: &str, argument: &Expr, point: u64) -> Option<Complex> {
    if let ("binomial", Expr::Group(_, items, _)) = (name, argument) {
        let (n, k) = (complex(items.first()?, point)?.re, complex(items.get(1)?, point)?.re);
        return (n.fract() == 0.0 && k.fract() == 0.0 && (0.0..=1e3).contains(&n) && k >= 0.0).then(|| {
            real((0..k as u64).fold(1.0, |product, i| (product * (n - i as f64) / (i as f64 + 1.0)).round()))
        });
    }
    // An argument in degrees is an angle.
    let argument = match argument {
        Expr::Degrees(inner) => complex(inner, point)?.times(real(std::f64::consts::PI / 180.0)),
        other => complex(other, point)?,
    };
    let one = real(1.0);
    let value = match name {
        "sin" => argument.sin(),
        "cos" => argument.cos(),
        "tan" => argument.sin().over(argument.cos()),
        "cot" => argument.cos().over(argument.sin()),
        "sec" => one.over(argument.cos()),
        "csc" => one.over(argument.sin()),
        "sinh" => argument.exp().minus(real(0.0).minus(argument).exp()).over(real(2.0)),
        "cosh" => argument.exp().plus(real(0.0).minus(argument).exp()).over(real(2.0)),
        "arcsin" if argument.im == 0.0 => real(argument.re.asin()),
        "arccos" if argument.im == 0.0 => real(argument.re.acos()),
        "arctan" if argument.im == 0.0 => real(argument.re.atan()),
        "exp" => argument.exp(),
        "ln" => argument.ln(),
        "abs" => real(argument.re.hypot(argument.im)),
        "floor" if argument.im == 0.0 => real(argument.re.floor()),
        "ceil" if argument.im == 0.0 => real(argument.re.ceil()),
        "factorial" if argument.re.fract() == 0.0 && (0.0..=170.0).contains(&argument.re) => {
            real((1..=argument.re as u64).fold(1.0, |product, n| product * n as f64))
        }
        _ => return None,
    };
    (value.re.is_finite() && value.im.is_finite()).then_some(value)
}

impl Complex {
    const fn plus(self, b: Self) -> Self {
        Self { re: self.re + b.re, im: self.im + b.im }
    }

    pub(super) const fn minus(self, b: Self) -> Self {
        Self { re: self.re - b.re, im: self.im - b.im }
    }

    const fn times(self, b: Self) -> Self {
        Self { re: self.re * b.re - self.im * b.im, im: self.re * b.im + self.im * b.re }
    }

    pub(super) const fn over(self, b: Self) -> Self {
        let size = b.re * b.re + b.im * b.im;
        let product = self.times(Self { re: b.re, im: -b.im });
        Self { re: product.re / size, im: product.im / size }
    }

    /// The principal value.
    fn to(self, power: Self) -> Self {
        if self.im == 0.0 && power.im == 0.0 && (self.re >= 0.0 || power.re.fract() == 0.0) {
            return real(self.re.powf(power.re));
        }
        self.ln().times(power).exp()
    }

    fn exp(self) -> Self {
        let size = self.re.exp();
        Self { re: size * self.im.cos(), im: size * self.im.sin() }
    }

    fn ln(self) -> Self {
        Self { re: self.re.hypot(self.im).ln(), im: self.im.atan2(self.re) }
    }

    fn sin(self) -> Self {
        Self { re: self.re.sin() * self.im.cosh(), im: self.re.cos() * self.im.sinh() }
    }

    fn cos(self) -> Self {
        Self { re: self.re.cos() * self.im.cosh(), im: -self.re.sin() * self.im.sinh() }
    }

    pub(super) const fn size(self) -> f64 {
        self.re.abs() + self.im.abs()
    }
}
