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
/// Factors of one factorial or binomial coefficient at most.
const MAX_FACTORS: u64 = 10_000;
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
    use Expr::{Add, Degrees, Divide, Function, Multiply, Negate, Number, Percent, Power, Symbol};
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
        Percent(a) => Some(multiply(of(a)?, inverse(100))),
        Function(name, of) => counted(name, of),
        _ => None,
    }
}

/// A factorial or a binomial coefficient, of which no factor is as large as the prime.
fn counted(name: &str, of: &Expr) -> Option<u64> {
    let product = |from: u64, to: u64| (from..=to).fold(1, multiply);
    let steps = |n: i64| u64::try_from(n).ok().filter(|n| *n <= MAX_FACTORS);
    match (name, of) {
        ("factorial", n) => Some(product(1, steps(whole(n)?)?)),
        ("binomial", Expr::Group(_, items, _)) => {
            let (n, k) = (whole(items.first()?)?, whole(items.get(1)?)?);
            if n < 0 || k < 0 {
                return None;
            }
            if k > n {
                return Some(0);
            }
            let k = steps(k.min(n - k))?;
            Some(multiply(product(n as u64 - k + 1, n as u64), inverse(product(1, k))))
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
    use Expr::{Add, Constant, Degrees, Divide, Function, Multiply, Negate, Number, Percent, Power, Symbol};
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
        Percent(a) => of(a)?.over(real(100.0)),
        Function(name, argument) => return function(name, argument, point),
        _ => return None,
    };
    (value.re.is_finite() && value.im.is_finite()).then_some(value)
}

fn function(name: &str, argument: &Expr, point: u64) -> Option<Complex> {
    if let ("binomial", Expr::Group(_, items, _)) = (name, argument) {
        return binomial(complex(items.first()?, point)?.re, complex(items.get(1)?, point)?.re);
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
        "arcsin" => argument.arcsin(),
        "arccos" => real(std::f64::consts::FRAC_PI_2).minus(argument.arcsin()),
        "arctan" if argument.im == 0.0 => real(argument.re.atan()),
        "exp" => argument.exp(),
        "ln" => argument.ln(),
        "abs" => real(argument.re.hypot(argument.im)),
        "floor" if argument.im == 0.0 => real(argument.re.floor()),
        "ceil" if argument.im == 0.0 => real(argument.re.ceil()),
        "factorial" if argument.im == 0.0 => real(factorial(argument.re)),
        _ => return None,
    };
    (value.re.is_finite() && value.im.is_finite()).then_some(value)
}

/// Γ(x + 1), so that a factorial of variables has a value at any of their points. Exact up to 2^53 for
/// whole numbers; else by Lanczos' approximation with g = 7 and nine terms, to about 10^-14.
fn factorial(x: f64) -> f64 {
    const LANCZOS: [f64; 8] = [
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    if x.fract() == 0.0 {
        let is_finite = (0.0..=170.0).contains(&x);
        return if is_finite { (1..=x as u64).fold(1.0, |product, n| product * n as f64) } else { f64::NAN };
    }
    if x < -0.5 {
        // Γ(1 + x) Γ(−x) = −π / sin(πx)
        return -std::f64::consts::PI / ((std::f64::consts::PI * x).sin() * factorial(-x - 1.0));
    }
    let terms = LANCZOS.iter().zip(1_u8..).map(|(term, i)| term / (x + f64::from(i)));
    let (sum, base) = (0.999_999_999_999_809_9 + terms.sum::<f64>(), x + 7.5);
    (std::f64::consts::TAU).sqrt() * base.powf(x + 0.5) * (-base).exp() * sum
}

/// n over k; 0 where more are chosen than there are.
fn binomial(n: f64, k: f64) -> Option<Complex> {
    if n.fract() != 0.0 || k.fract() != 0.0 {
        return Some(real(factorial(n) / (factorial(k) * factorial(n - k))))
            .filter(|value| value.re.is_finite());
    }
    if !(0.0..=1e3).contains(&n) || k < 0.0 {
        return None;
    }
    if k > n {
        return Some(real(0.0));
    }
    let factor = |product: f64, i| (product * (n - f64::from(i)) / (f64::from(i) + 1.0)).round();
    Some(real((0..k.min(n - k) as u32).fold(1.0, factor)))
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

    /// −i ln(iz + √(1 − z²)), which is an angle also where z is none of a sine's.
    fn arcsin(self) -> Self {
        if self.im == 0.0 && self.re.abs() <= 1.0 {
            return real(self.re.asin());
        }
        let root = real(1.0).minus(self.times(self)).to(real(0.5));
        let i = Self { re: 0.0, im: 1.0 };
        i.times(self).plus(root).ln().over(i)
    }

    pub(super) const fn size(self) -> f64 {
        self.re.abs() + self.im.abs()
    }
}
