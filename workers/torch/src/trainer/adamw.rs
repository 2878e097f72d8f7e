//! AdamW over the parts of the flat buffer that a member owns.

use millrace_kernels::training::{self, AdamW};
use millrace_schemas::submit::Algorithm;
use tch::{Kind, Tensor};

use super::state::Optimiser;
use super::zero_partition::OwnedRange;
use crate::gpu_kernels;

/// Added to the root of the second moment.
const EPSILON: f64 = 1e-8;
/// Elements of one update call on a CPU: intermediate results stay in its caches and take no memory
/// of the size of the model.
const SPAN: i64 = 1 << 18;
/// Elements whose squares a GPU adds up in f32.
const ROW: i64 = 1 << 16;

/// One update of `weights` `[own]` by `gradient` `[own]` at `rate`: Loshchilov and Hutter,
/// "Decoupled Weight Decay Regularization", 2019, algorithm 2, with the arithmetic of
/// `torch.optim.AdamW`. Only `decayed` is decayed.
pub(super) fn update(
    weights: &Tensor,
    optimiser: &mut Optimiser,
    gradient: &Tensor,
    decayed: &[OwnedRange],
    (rate, algorithm): (f64, &Algorithm),
) {
    optimiser.updates += 1;
    if gpu_kernels::train(weights.device()) {
        return update_at_once(weights, optimiser, gradient, decayed, (rate, algorithm));
    }
    if algorithm.weight_decay > 0.0 {
        for range in decayed {
            let _ =
                weights.narrow(0, range.own_at, range.len).g_mul_scalar_(1.0 - rate * algorithm.weight_decay);
        }
    }
    let (first, second) = (algorithm.adam_beta1, algorithm.adam_beta2);
    let count = optimiser.updates as f64;
    let size = rate / (1.0 - first.powf(count));
    let correction = (1.0 - second.powf(count)).sqrt();
    for (from, len) in spans(gradient) {
        let span = |of: &Tensor| of.narrow(0, from, len);
        let [mut weights, gradient, mut m, mut v] =
            [span(weights), span(gradient), span(&optimiser.first), span(&optimiser.second)];
        let _ = m.lerp_(&gradient, 1.0 - first);
        let _ = v.g_mul_scalar_(second);
        v += gradient.square() * (1.0 - second);
        weights -= &m / (v.sqrt() / correction + EPSILON) * size;
    }
}

/// The same on CUDA, in one pass; rounding differs.
fn update_at_once(
    weights: &Tensor,
    optimiser: &Optimiser,
    gradient: &Tensor,
    decayed: &[OwnedRange],
    (rate, algorithm): (f64, &Algorithm),
) {
    let decayed = if algorithm.weight_decay > 0.0 { decayed } else { &[] };
    let (decayed, others) = split(decayed, gradient.size()[0]);
    let betas = [algorithm.adam_beta1, algorithm.adam_beta2];
    for (ranges, weight_decay) in [(decayed, algorithm.weight_decay), (others, 0.0)] {
        let by = AdamW { step: optimiser.updates as f64, rate, betas, weight_decay, epsilon: EPSILON };
        training::adamw(weights, gradient, [&optimiser.first, &optimiser.second], &ranges, by);
    }
}

/// Start and length of each of these ranges, which are in order, one after another; and those of what is
/// between them in `[len]`.
fn split(ranges: &[OwnedRange], len: i64) -> (Vec<i64>, Vec<i64>) {
    let (mut inside, mut between, mut end) = (Vec::new(), Vec::new(), 0);
    for range in ranges {
        between.extend((range.own_at > end).then_some([end, range.own_at - end]).into_iter().flatten());
        inside.extend([range.own_at, range.len]);
        end = range.own_at + range.len;
    }
    between.extend((len > end).then_some([end, len - end]).into_iter().flatten());
    (inside, between)
}

/// The sum of squares of `gradient` `[own]`, in f64.
pub(super) fn squares(gradient: &Tensor) -> Tensor {
    if gpu_kernels::train(gradient.device()) {
        return squares_by_rows(gradient);
    }
    let kind = Kind::Double;
    let sum = |(from, len)| gradient.narrow(0, from, len).to_kind(kind).square().sum(kind);
    let sums: Vec<Tensor> = spans(gradient).map(sum).collect();
    Tensor::stack(&sums, 0).sum(kind)
}

/// The same on CUDA: rows are added up in f32 in one pass, and the sums of the rows in f64.
fn squares_by_rows(gradient: &Tensor) -> Tensor {
    let len = gradient.size()[0];
    let whole = len / ROW * ROW;
    let norms = |part: Tensor| part.norm_scalaropt_dim_dtype(2, [1_i64].as_slice(), false, Kind::Float);
    let rows = norms(gradient.narrow(0, 0, whole).view([-1, ROW]));
    let rest = norms(gradient.narrow(0, whole, len - whole).view([1, -1]));
    Tensor::cat(&[rows, rest], 0).to_kind(Kind::Double).square().sum(Kind::Double)
}

/// Start and length of each span of a flat tensor.
fn spans(flat: &Tensor) -> impl Iterator<Item = (i64, i64)> + use<> {
    let len = flat.size()[0];
    (0..len).step_by(SPAN as usize).map(move |from| (from, SPAN.min(len - from)))
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    fn random(len: i64) -> Tensor {
        Tensor::randn([len], (Kind::Float, Device::Cpu))
    }

    fn range(own_at: i64, len: i64) -> OwnedRange {
        OwnedRange { flat_at: 0, own_at, len }
    }

    #[test]
    fn one_pass_updates_as_many_do() {
        tch::manual_seed(1);
        let algorithm = Algorithm { weight_decay: 0.1, ..Algorithm::default() };
        let state = || Optimiser {
            first: Tensor::zeros([5000], (Kind::Float, Device::Cpu)),
            second: Tensor::zeros([5000], (Kind::Float, Device::Cpu)),
            masters: None,
            updates: 0,
        };
        let start = random(5000);
        let (ours, theirs) = (start.copy(), start.copy());
        let (mut by_one, mut by_many) = (state(), state());
        let decayed = [range(7, 1000), range(3000, 1999)];
        for _ in 0..5 {
            let gradient = random(5000);
            by_one.updates += 1;
            update_at_once(&ours, &by_one, &gradient, &decayed, (1e-2, &algorithm));
            update(&theirs, &mut by_many, &gradient, &decayed, (1e-2, &algorithm));
        }
        for (ours, theirs) in
            [(&ours, &theirs), (&by_one.first, &by_many.first), (&by_one.second, &by_many.second)]
        {
            let off = f64::try_from((ours - theirs).abs().max()).unwrap_or(f64::NAN);
            assert!(off < 1e-6, "off by {off}");
        }
        let moved = f64::try_from((&ours - start).abs().max()).unwrap_or(f64::NAN);
        assert!(moved > 1e-2, "moved by {moved}");
    }

    #[test]
    fn ranges_and_what_is_between_them_are_all() {
        assert_eq!(
            split(&[range(2, 3), range(5, 1), range(9, 1)], 10),
            (vec![2, 3, 5, 1, 9, 1], vec![0, 2, 6, 3])
        );
        assert_eq!(split(&[], 4), (vec![], vec![0, 4]));
        assert_eq!(split(&[range(0, 4)], 4), (vec![0, 4], vec![]));
    }

    #[test]
    fn squares_by_rows_are_the_squares() {
        tch::manual_seed(2);
        for len in [5, ROW, 3 * ROW + 11] {
            let gradient = random(len);
            let [ours, theirs] = [squares_by_rows(&gradient), squares(&gradient)]
                .map(|sum| f64::try_from(sum).unwrap_or(f64::NAN));
            assert!((ours / theirs - 1.0).abs() < 1e-6, "{ours} {theirs}");
        }
    }
}
