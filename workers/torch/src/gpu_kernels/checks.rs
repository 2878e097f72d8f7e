//! The kernels of a train step beside libtorch's plain operators in f32: results and gradients. A GPU runs
//! these checks before it uses the kernels; on a CPU they are tests.

use millrace_kernels::training::{self, AdamW, Starts};
use tch::{Device, Kind, Tensor};

use crate::decoder::one_pass;

/// Above what rounding to bf16 once comes to, as a share of the norm.
const MOST_OFF: f64 = 6e-3;
/// Above what it comes to where probabilities and their gradients are rounded in between.
const ATTENTION_MOST_OFF: f64 = 2e-2;

/// Checks all of them on `device`.
///
/// # Errors
/// The kernel that differs, and by how much.
pub(super) fn training(device: Device) -> Result<(), String> {
    gate(device)?;
    norm(device)?;
    turned_heads(device)?;
    attention(device)?;
    softmax(device)?;
    update(device)
}

/// Numbers of bf16 that look drawn, between -2 and 2: the same on every device and in every process.
fn half(shape: &[i64], device: Device) -> Tensor {
    let count: i64 = shape.iter().product();
    let places = Tensor::arange(count, (Kind::Double, Device::Cpu));
    let mixed: Tensor = (places * 12.9898).sin() * 43758.5453;
    let numbers: Tensor = mixed.frac() * 2.0;
    numbers.view(shape).to_kind(Kind::BFloat16).to_device(device)
}

fn is_close(what: &str, ours: &Tensor, theirs: &Tensor) -> Result<(), String> {
    is_within(MOST_OFF, what, ours, theirs)
}

fn is_within(most: f64, what: &str, ours: &Tensor, theirs: &Tensor) -> Result<(), String> {
    let norm = |of: &Tensor| f64::try_from(of.to_kind(Kind::Double).norm()).unwrap_or(f64::NAN);
    let off = norm(&(ours.to_kind(Kind::Double) - theirs.to_kind(Kind::Double))) / norm(theirs);
    // NaN is not below.
    if ours.size() == theirs.size() && off < most {
        return Ok(());
    }
    Err(format!("{what}: off by {off} of its norm"))
}

/// Compares a function of bf16 with one of f32: results, and gradients by all inputs of a weighted sum.
fn same(
    what: &str,
    inputs: &[Tensor],
    ours: impl Fn(&[Tensor]) -> Tensor,
    theirs: impl Fn(&[Tensor]) -> Tensor,
) -> Result<(), String> {
    same_within(MOST_OFF, what, inputs, ours, theirs)
}

/// The same with another bound.
fn same_within(
    most: f64,
    what: &str,
    inputs: &[Tensor],
    ours: impl Fn(&[Tensor]) -> Tensor,
    theirs: impl Fn(&[Tensor]) -> Tensor,
) -> Result<(), String> {
    let run = |kind: Kind, of: &dyn Fn(&[Tensor]) -> Tensor| {
        let leaf = |input: &Tensor| input.detach().to_kind(kind).copy().set_requires_grad(true);
        let leaves: Vec<Tensor> = inputs.iter().map(leaf).collect();
        tch::with_grad(|| {
            let out = of(&leaves);
            let weights = half(&out.size(), out.device()).to_kind(kind);
            (&out * weights).sum(Kind::Float).backward();
            let gradients = leaves.iter().map(Tensor::grad);
            std::iter::once(out.detach()).chain(gradients).collect::<Vec<_>>()
        })
    };
    let (ours, theirs) = (run(Kind::BFloat16, &ours), run(Kind::Float, &theirs));
    for (index, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        let part = if index == 0 { "result".to_owned() } else { format!("gradient {index}") };
        is_within(most, &format!("{what}, {part}"), ours, theirs)?;
    }
    Ok(())
}

fn gate(device: Device) -> Result<(), String> {
    let plain = |x: &[Tensor]| {
        let parts = x[0].chunk(2, 1);
        parts[0].silu() * &parts[1]
    };
    same("gate", &[half(&[37, 2 * 24], device)], |x| training::gate(&x[0]), plain)
}

/// Rows normalised.
fn norm(device: Device) -> Result<(), String> {
    let plain = |x: &[Tensor]| {
        let mean = x[0].square().mean_dim([-1_i64].as_slice(), true, Kind::Float);
        &x[0] * (mean + 1e-6).rsqrt() * &x[1]
    };
    // Few rows and many have kernels of their own.
    for [rows, width] in [[37, 48], [1037, 512]] {
        let weight = (half(&[width], device) * 0.2 + 1.0).to_kind(Kind::BFloat16);
        let ours = |x: &[Tensor]| one_pass::normalise(&x[0], &x[1], 1e-6);
        same("norm", &[half(&[rows, width], device), weight], ours, plain)?;
    }
    Ok(())
}

fn turned_heads(device: Device) -> Result<(), String> {
    const WIDTH: i64 = 32;
    // Rows that lie apart, as a part of a wider product's do.
    let (rows, heads) = (19, 3);
    let wide = half(&[rows, 5 * WIDTH], device);
    let norm = (half(&[WIDTH], device) * 0.2 + 1.0).to_kind(Kind::BFloat16);
    let angle = half(&[rows, 1, WIDTH / 2], device).to_kind(Kind::Float);
    let table = |of: &Tensor, first: f64| Tensor::cat(&[&(of * first), of], 2).to_kind(Kind::BFloat16);
    let (cos, sin) = (table(&angle.cos(), 1.0), table(&angle.sin(), -1.0));
    let part = |x: &Tensor| x.narrow(1, WIDTH, heads * WIDTH);
    let plain = |x: &Tensor, norm: Option<&Tensor>| {
        let mut x = part(x).reshape([rows, heads, WIDTH]);
        if let Some(norm) = norm {
            let mean = x.square().mean_dim([-1_i64].as_slice(), true, Kind::Float);
            x = &x * (mean + 1e-6).rsqrt() * norm;
        }
        let turned = &x * cos.to_kind(Kind::Float) + x.roll([WIDTH / 2], [2]) * sin.to_kind(Kind::Float);
        turned.reshape([rows, heads * WIDTH])
    };
    same(
        "rotated heads",
        &[wide.shallow_clone()],
        |x| training::turn_heads(&part(&x[0]), None, &cos, &sin),
        |x| plain(&x[0], None),
    )?;
    same(
        "normalised and rotated heads",
        &[wide, norm],
        |x| training::turn_heads(&part(&x[0]), Some((&x[1], 1e-6)), &cos, &sin),
        |x| plain(&x[0], Some(&x[1])),
    )
}

fn attention(device: Device) -> Result<(), String> {
    const LENGTHS: [i64; 4] = [70, 1, 33, 128];
    attention_of("attention", 32, LENGTHS, LENGTHS, device)?;
    // Rows that come after others, as in a prefill of what follows a cached prefix. Widths of heads are
    // kernels of their own, and so are several blocks of keys.
    for width in [32, 64, 128] {
        attention_of("attention to a prefix", width, [5, 1, 33, 64], [300, 129, 33, 70], device)?;
    }
    Ok(())
}

/// Attention of sequences of so many queries and keys, with heads of `width` numbers.
fn attention_of(
    what: &str,
    width: i64,
    rows: [i64; 4],
    seen: [i64; 4],
    device: Device,
) -> Result<(), String> {
    let plain = |x: &[Tensor]| {
        let (mut from, mut parts) = ([0, 0], Vec::new());
        for (rows, seen) in rows.into_iter().zip(seen) {
            let heads = |x: &Tensor, from, count| x.narrow(0, from, count).transpose(0, 1);
            let (q, k, v) =
                (heads(&x[0], from[0], rows), heads(&x[1], from[1], seen), heads(&x[2], from[1], seen));
            let [k, v] = [k, v].map(|x| x.repeat_interleave_self_int(2, 0, None));
            let scores = q.matmul(&k.transpose(1, 2)) / (width as f64).sqrt();
            let hidden = Tensor::ones([rows, seen], (Kind::Bool, device)).triu(1 + seen - rows);
            let p = scores.masked_fill(&hidden, f64::NEG_INFINITY).softmax(-1, Kind::Float);
            parts.push(p.matmul(&v).transpose(0, 1));
            from = [from[0] + rows, from[1] + seen];
        }
        Tensor::cat(&parts, 0)
    };
    let all = |lengths: [i64; 4]| lengths.iter().sum::<i64>();
    let [q, k, v] = [(all(rows), 4), (all(seen), 2), (all(seen), 2)]
        .map(|(rows, heads)| half(&[rows, heads, width], device));
    let [rows, seen] = [rows, seen].map(|lengths| Starts::new(lengths.into_iter(), device));
    let ours = |x: &[Tensor]| training::attend_sequences(&x[0], &x[1], &x[2], &rows, &seen);
    same_within(ATTENTION_MOST_OFF, what, &[q, k, v], ours, plain)
}

/// What the head computes of its logits, in one pass forward and one back.
fn softmax(device: Device) -> Result<(), String> {
    const TEMPERATURE: f64 = 0.7;
    let logits = half(&[29, 1008], device) * 4;
    let largest = logits.amax([-1_i64].as_slice(), false).to_kind(Kind::Float);
    let scaled = (logits.to_kind(Kind::Float) - largest.unsqueeze(1)) / TEMPERATURE;
    let exponentials = scaled.exp();
    let sum_of = |x: &Tensor| x.sum_dim_intlist([-1_i64].as_slice(), false, Kind::Float);
    let expected = Tensor::stack(&[sum_of(&exponentials), sum_of(&(&exponentials * &scaled))], 1);
    is_close("sums of a softmax", &training::exponential_sums(&logits, &largest, TEMPERATURE), &expected)?;

    let log_sum: Tensor = &largest / TEMPERATURE + sum_of(&exponentials).log();
    let [a, b] = [half(&[29], device), half(&[29], device)].map(|x| x.to_kind(Kind::Float));
    let rows = Tensor::stack(&[&log_sum, &a, &b, &log_sum.full_like(TEMPERATURE.recip())], 1);
    let log_p = logits.to_kind(Kind::Float) / TEMPERATURE - log_sum.unsqueeze(1);
    let expected = log_p.exp() * (a.unsqueeze(1) + b.unsqueeze(1) * &log_p);
    is_close("gradient of a softmax", &training::logits_gradient(&logits, &rows), &expected)
}

/// libtorch's own AdamW in one pass, on parts of a buffer.
fn update(device: Device) -> Result<(), String> {
    let by = AdamW { step: 3.0, rate: 1e-2, betas: [0.9, 0.99], weight_decay: 0.1, epsilon: 1e-8 };
    let numbers = |from: f64| (half(&[300], device) * from).to_kind(Kind::Float);
    let (weights, gradient, first, second) =
        (numbers(1.0), numbers(0.3), numbers(0.1), numbers(0.2).square());
    let (m, v) = (first.lerp(&gradient, 0.1), &second * 0.99 + gradient.square() * 0.01);
    let root = (&v / (1.0 - 0.99_f64.powi(3))).sqrt() + 1e-8;
    let whole: Tensor = &weights * (1.0 - 1e-3) - &m / root * (1e-2 / (1.0 - 0.9_f64.powi(3)));
    // What is between the two parts stays.
    let at = |new: &Tensor, old: &Tensor| {
        Tensor::cat(&[new.narrow(0, 0, 100), old.narrow(0, 100, 50), new.narrow(0, 150, 150)], 0)
    };
    let expected = [at(&whole, &weights), at(&m, &first), at(&v, &second)];
    training::adamw(&weights, &gradient, [&first, &second], &[0, 100, 150, 150], by);
    let found = [("weights", &weights), ("first moment", &first), ("second moment", &second)];
    found.into_iter().zip(&expected).try_for_each(|((what, ours), theirs)| is_close(what, ours, theirs))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the tests compute: on a GPU where there is one, too.
    fn everywhere(check: impl Fn(Device) -> Result<(), String>) {
        check(Device::Cpu).unwrap();
        match Device::cuda_if_available() {
            Device::Cpu => println!("no GPU: on a CPU only"),
            found => check(found).unwrap(),
        }
    }

    #[test]
    fn the_gate_and_its_gradient_are_the_plain_ones_cuda_or_not() {
        everywhere(gate);
    }

    #[test]
    fn the_norm_and_its_gradients_are_the_plain_ones_cuda_or_not() {
        everywhere(norm);
    }

    #[test]
    fn an_update_in_one_pass_is_the_plain_one_cuda_or_not() {
        everywhere(update);
    }

    #[test]
    fn turned_heads_and_their_gradients_are_the_plain_ones_cuda_or_not() {
        everywhere(turned_heads);
    }

    #[test]
    fn attention_of_sequences_is_each_ones_own_cuda_or_not() {
        everywhere(attention);
    }

    #[test]
    fn the_passes_of_a_softmax_are_the_plain_ones_cuda_or_not() {
        everywhere(softmax);
    }

    #[test]
    fn a_kernel_that_computes_something_else_is_found() {
        let input = [half(&[8, 16], Device::Cpu)];
        let double = |x: &[Tensor]| &x[0] * 2.0;
        same("double", &input, double, double).unwrap();
        let result = same("double", &input, |x| &x[0] * 2.05, double).unwrap_err();
        assert!(result.contains("double, result"), "{result}");
        let of_nothing = |x: &[Tensor]| &x[0] * f64::NAN;
        same("double", &input, of_nothing, double).unwrap_err();
        // The result is right, the gradient is not.
        let gradient = same("double", &input, |x| &x[0] + x[0].detach(), double).unwrap_err();
        assert!(gradient.contains("gradient 1"), "{gradient}");
    }
}
