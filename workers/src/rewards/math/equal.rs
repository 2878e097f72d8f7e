//! Whether two expressions are equal.

use super::tree::Expr;
use super::value::{POINTS, any, complex, exact, has_decimals, has_symbols};

/// The relative difference up to which two inexact values are equal.
const NEAR: f64 = 1e-9;
/// Decimal numbers are compared to this many places.
const PLACES: f64 = 1e6;
/// And to six digits, so that a small number is not 0.
const DIGITS: f64 = 5e-6;

/// Whether `given` equals `right`. Where the answer is `x = 5`, 5 equals it too, and where it is 5, the
/// last side of `P(A) = 5`.
pub(super) fn equal(right: &Expr, given: &Expr) -> bool {
    let (right, given) = (plain(right), plain(given));
    match (&right, &given) {
        (Expr::Relation("=", ..), Expr::Relation("=", ..)) => same(&right, &given),
        (Expr::Relation("=", left, value), other) if !matches!(other, Expr::Relation(..)) => {
            let names = is_name(left) || matches!(**value, Expr::Symbol(_));
            names && same(&plain(side(left, value)), other)
        }
        (other, Expr::Relation("=", left, value)) if !matches!(other, Expr::Relation(..)) => {
            // An equation that is solved for nothing has no value, least of all its 0.
            let solved = is_name(left) || **value != Expr::Number("0".to_owned());
            solved && same(other, &plain(side(left, value)))
        }
        _ => same(&right, &given),
    }
}

/// Whether it is a name, or what a function is of: x, AB, P(A), (x, y); or has no variables at all.
fn is_name(expr: &Expr) -> bool {
    match expr {
        Expr::Symbol(_) => true,
        Expr::Multiply(a, b) => {
            matches!(**a, Expr::Symbol(_)) && (is_name(b) || matches!(**b, Expr::Group(..)))
        }
        Expr::Group(_, items, _) => items.iter().all(|item| matches!(item, Expr::Symbol(_))),
        Expr::Function(name, of) => name == "abs" && is_name(of),
        other => !has_symbols(other),
    }
}

/// The side of `=` that is the value: the last, or of `5 = x` the first.
fn side<'a>(left: &'a Expr, value: &'a Expr) -> &'a Expr {
    match value {
        Expr::Relation("=", left, value) => side(left, value),
        Expr::Symbol(_) if !matches!(left, Expr::Symbol(_)) => left,
        value => value,
    }
}

/// The same expression in a normal form: ± becomes a set, a bound on one side an interval, names before
/// the values of a list are left out, and factors of a matrix are within it.
fn plain(expr: &Expr) -> Expr {
    let has_signs = |part: &Expr| any(part, &|part| matches!(part, Expr::PlusMinus(..)));
    if has_signs(expr) {
        let items = match expr {
            Expr::Group(' ', items, ' ') => items.as_slice(),
            one => std::slice::from_ref(one),
        };
        let both = |item| match has_signs(item) {
            true => vec![signed(item, false), signed(item, true)],
            false => vec![signed(item, false)],
        };
        return Expr::Group('{', items.iter().flat_map(both).collect(), '}');
    }
    if let Some(matrix) = scaled(expr) {
        return matrix;
    }
    match expr {
        Expr::Group(' ', items, ' ') => {
            let value = |item: &Expr| match item {
                Expr::Relation("=", left, value) if matches!(**left, Expr::Symbol(_)) => (**value).clone(),
                other => other.clone(),
            };
            Expr::Group(' ', items.iter().map(value).collect(), ' ')
        }
        Expr::Relation(sign @ ("<" | "<="), low, high) => {
            let infinite = || Expr::Constant("infty");
            match (&**low, &**high) {
                (Expr::Symbol(_), high) if !has_symbols(high) => {
                    let close = if *sign == "<=" { ']' } else { ')' };
                    Expr::Group('(', vec![Expr::Negate(Box::new(infinite())), high.clone()], close)
                }
                (low, Expr::Symbol(_)) if !has_symbols(low) => {
                    let open = if *sign == "<=" { '[' } else { '(' };
                    Expr::Group(open, vec![low.clone(), infinite()], ')')
                }
                _ => expr.clone(),
            }
        }
        Expr::Negate(inner) => match &**inner {
            Expr::Percent(number) => Expr::Percent(Box::new(Expr::Negate(number.clone()))),
            _ => expr.clone(),
        },
        other => other.clone(),
    }
}

/// A matrix with the factor before it, or the divisor after it, in each of its entries.
fn scaled(expr: &Expr) -> Option<Expr> {
    let one = || Box::new(Expr::Number("1".to_owned()));
    let is_number = |expr: &Expr| !any(expr, &|part| matches!(part, Expr::Group(..)));
    let (matrix, factor) = match expr {
        Expr::Negate(matrix) => (matrix, Expr::Negate(one())),
        Expr::Multiply(factor, matrix) if is_number(factor) => (matrix, (**factor).clone()),
        Expr::Divide(matrix, by) if is_number(by) => (matrix, Expr::Divide(one(), by.clone())),
        _ => return None,
    };
    let matrix = if let Expr::Group('#', ..) = **matrix { (**matrix).clone() } else { scaled(matrix)? };
    let Expr::Group(_, rows, _) = matrix else { return None };
    let entry = |entry: &Expr| Expr::Multiply(Box::new(factor.clone()), Box::new(entry.clone()));
    let row = |row: &Expr| match row {
        Expr::Group(open, entries, close) => Expr::Group(*open, entries.iter().map(entry).collect(), *close),
        other => other.clone(),
    };
    Some(Expr::Group('#', rows.iter().map(row).collect(), '#'))
}

/// The expression with one of the two signs.
fn signed(expr: &Expr, minus: bool) -> Expr {
    let boxed = |part: &Expr| Box::new(signed(part, minus));
    match expr {
        Expr::PlusMinus(before, part) => {
            let part = if minus { Expr::Negate(boxed(part)) } else { signed(part, minus) };
            match before {
                Some(before) => Expr::Add(boxed(before), Box::new(part)),
                None => part,
            }
        }
        Expr::Add(a, b) => Expr::Add(boxed(a), boxed(b)),
        Expr::Multiply(a, b) => Expr::Multiply(boxed(a), boxed(b)),
        Expr::Divide(a, b) => Expr::Divide(boxed(a), boxed(b)),
        Expr::Power(a, b) => Expr::Power(boxed(a), boxed(b)),
        Expr::Negate(a) => Expr::Negate(boxed(a)),
        Expr::Percent(a) => Expr::Percent(boxed(a)),
        Expr::Degrees(a) => Expr::Degrees(boxed(a)),
        Expr::Function(name, a) => Expr::Function(name.clone(), boxed(a)),
        Expr::Group(open, items, close) => {
            Expr::Group(*open, items.iter().map(|item| signed(item, minus)).collect(), *close)
        }
        Expr::Relation("=", a, b) if matches!(**a, Expr::Symbol(_)) => signed(b, minus),
        other => other.clone(),
    }
}

fn same(right: &Expr, given: &Expr) -> bool {
    use Expr::{Group, Percent, Relation, Union};
    // What has no value at the points, as e^{1000} or (1,2)^T, is still equal to itself.
    if right == given {
        return true;
    }
    match (right, given) {
        (Percent(right), Percent(given)) => same(right, given),
        // A percentage, or the plain number, as people write it.
        (Percent(number), other) | (other, Percent(number)) => {
            same(number, other) || same(&hundredths(number), other)
        }
        (Group(open, items, close), Group(other_open, others, other_close)) => {
            groups((*open, items, *close), (*other_open, others, *other_close))
        }
        // One expression in a bracket is that expression.
        (Group('{', items, _), one) | (one, Group('{', items, _)) if items.len() == 1 => same(&items[0], one),
        (Union(parts), Union(others)) => unordered(parts, others),
        (Relation(sign, a, b), Relation(other, c, d)) => sign == other && related(sign, (a, b), (c, d)),
        (Group(..) | Union(_) | Relation(..), _) | (_, Group(..) | Union(_) | Relation(..)) => false,
        _ => values(right, given),
    }
}

fn hundredths(number: &Expr) -> Expr {
    Expr::Divide(Box::new(number.clone()), Box::new(Expr::Number("100".to_owned())))
}

fn groups(right: (char, &[Expr], char), given: (char, &[Expr], char)) -> bool {
    let ((open, items, close), (other_open, others, other_close)) = (right, given);
    let is_set = |open| open == '{';
    let is_bare = |open| open == ' ';
    if is_set(open) || is_set(other_open) {
        let fits = |open| is_set(open) || is_bare(open);
        return fits(open) && fits(other_open) && unordered(&distinct(items), &distinct(others));
    }
    if is_bare(open) && is_bare(other_open) {
        return unordered(items, others);
    }
    let in_order = || items.len() == others.len() && items.iter().zip(others).all(|(a, b)| same(a, b));
    // Of two ends, the brackets tell whether they belong to the interval; else any bracket is equal.
    let brackets = (open, close) == (other_open, other_close);
    let any_will =
        is_bare(open) || is_bare(other_open) || (items.len() > 2 && open != '#' && other_open != '#');
    (brackets || any_will) && in_order()
}

/// The elements of a set, each once.
fn distinct(items: &[Expr]) -> Vec<Expr> {
    let mut kept: Vec<Expr> = Vec::new();
    for item in items {
        if !kept.iter().any(|other| same(other, item)) {
            kept.push(item.clone());
        }
    }
    kept
}

fn unordered(items: &[Expr], others: &[Expr]) -> bool {
    let mut left: Vec<&Expr> = others.iter().collect();
    let takes = |item: &Expr, left: &mut Vec<&Expr>| {
        let at = left.iter().position(|other| same(item, other));
        at.map(|at| left.swap_remove(at)).is_some()
    };
    items.len() == others.len() && items.iter().all(|item| takes(item, &mut left))
}

/// Whether two relations have the same solutions: the difference of one's sides is a multiple of the
/// other's, by a factor above 0 in an inequality.
fn related(sign: &str, (a, b): (&Expr, &Expr), (c, d): (&Expr, &Expr)) -> bool {
    let mut ratio = None;
    for point in 0..POINTS {
        let differ = |a, b| Some(complex(a, point)?.minus(complex(b, point)?));
        let (Some(one), Some(other)) = (differ(a, b), differ(c, d)) else { continue };
        let here = one.over(other);
        if !here.re.is_finite() || here.im.abs() > NEAR || here.re == 0.0 {
            return false;
        }
        let fits = ratio.is_none_or(|ratio: f64| (here.re - ratio).abs() <= NEAR * ratio.abs());
        if !fits || (sign != "=" && here.re < 0.0) {
            return false;
        }
        ratio = Some(here.re);
    }
    ratio.is_some()
}

/// Whether two expressions have the same value for all values of their variables.
fn values(right: &Expr, given: &Expr) -> bool {
    let infinite = |expr: &Expr| match expr {
        Expr::Constant("infty") => Some(false),
        Expr::Negate(inner) if **inner == Expr::Constant("infty") => Some(true),
        _ => None,
    };
    if infinite(right).is_some() || infinite(given).is_some() {
        return infinite(right) == infinite(given);
    }
    let rounded = (has_decimals(right) || has_decimals(given)) && !has_symbols(right) && !has_symbols(given);
    let may_cancel = cancels(right) || cancels(given);
    let (mut exactly, mut about) = (0, 0);
    for point in 0..POINTS {
        let exacts = exact(right, point).zip(exact(given, point));
        match exacts {
            Some((a, b)) if a == b => {
                exactly += 1;
                continue;
            }
            Some(_) if !rounded => return false,
            Some(_) | None => {}
        }
        let (Some(a), Some(b)) = (complex(right, point), complex(given, point)) else { continue };
        let off = a.minus(b).size();
        let places = if rounded { (0.5 / PLACES).min(DIGITS * a.size()) } else { 0.0 };
        let noise = if may_cancel && exacts.is_none() { NEAR * 1e-3 } else { 0.0 };
        if off > places.max(noise).max(NEAR * a.size().max(b.size())) {
            return false;
        }
        about += 1;
    }
    exactly + about >= POINTS / 2
}

/// Whether its value may be a rounding error in place of 0, as that of sin π is.
fn cancels(expr: &Expr) -> bool {
    any(expr, &|part| matches!(part, Expr::Add(..) | Expr::Function(..) | Expr::Degrees(_)))
}
