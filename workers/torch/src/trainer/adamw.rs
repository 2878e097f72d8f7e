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
/// Elements of an offloaded state that are on the device at once: 256 MiB each of weights and moments.
const OFFLOADED_PART: i64 = 64 << 20;
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
    let update = Update { number: optimiser.updates, rate, algorithm };
    let state = [weights, &optimiser.first, &optimiser.second];
    if optimiser.offloaded {
        update.in_parts(OFFLOADED_PART, state, gradient, decayed);
    } else {
        update.apply(state, gradient, decayed);
    }
}

/// An update, numbered from 1.
struct Update<'a> {
    number: u64,
    rate: f64,
    algorithm: &'a Algorithm,
}

impl Update<'_> {
    /// Updates weights and moments in place, on the gradient's device.
    fn apply(&self, state: [&Tensor; 3], gradient: &Tensor, decayed: &[OwnedRange]) {
        if gpu_kernels::train(gradient.device()) {
            self.at_once(state, gradient, decayed);
        } else {
            self.in_spans(state, gradient, decayed);
        }
    }

    /// The same with what is not on the gradient's device, `most` elements at a time (Ren et al.,
    /// "ZeRO-Offload", 2021; here the device computes).
    fn in_parts(&self, most: i64, state: [&Tensor; 3], gradient: &Tensor, decayed: &[OwnedRange]) {
        let device = gradient.device();
        for (from, len) in spans(gradient, most) {
            let part = state.map(|of| of.narrow(0, from, len));
            let here = part.each_ref().map(|part| part.to_device(device));
            let [weights, first, second] = &here;
            let gradient = gradient.narrow(0, from, len);
            self.apply([weights, first, second], &gradient, &within(decayed, from, len));
            for (mut part, here) in part.into_iter().zip(&here).filter(|(part, _)| part.device() != device) {
                part.copy_(here);
            }
        }
    }

    fn in_spans(&self, state: [&Tensor; 3], gradient: &Tensor, decayed: &[OwnedRange]) {
        let Self { number, rate, algorithm } = *self;
        if algorithm.weight_decay > 0.0 {
            for range in decayed {
                let mut weights = state[0].narrow(0, range.own_at, range.len);
                let _ = weights.g_mul_scalar_(1.0 - rate * algorithm.weight_decay);
            }
        }
        let (first, second) = (algorithm.adam_beta1, algorithm.adam_beta2);
        let count = number as f64;
        let size = rate / (1.0 - first.powf(count));
        let correction = (1.0 - second.powf(count)).sqrt();
        for (from, len) in spans(gradient, SPAN) {
            let [mut weights, mut m, mut v] = state.map(|of| of.narrow(0, from, len));
            let gradient = gradient.narrow(0, from, len);
            let _ = m.lerp_(&gradient, 1.0 - first);
            let _ = v.g_mul_scalar_(second);
            v += gradient.square() * (1.0 - second);
            weights -= &m / (v.sqrt() / correction + EPSILON) * size;
        }
    }

    /// The same on CUDA, in one pass; rounding differs.
    fn at_once(&self, [weights, first, second]: [&Tensor; 3], gradient: &Tensor, decayed: &[OwnedRange]) {
        let Self { number, rate, algorithm } = *self;
        let decayed = if algorithm.weight_decay > 0.0 { decayed } else { &[] };
        let (decayed, others) = split(decayed, gradient.size()[0]);
        let betas = [algorithm.adam_beta1, algorithm.adam_beta2];
        for (ranges, weight_decay) in [(decayed, algorithm.weight_decay), (others, 0.0)] {
            let by = AdamW { step: number as f64, rate, betas, weight_decay, epsilon: EPSILON };
            training::adamw(weights, gradient, [first, second], &ranges, by);
        }
    }
}

/// What of these ranges is within `len` elements from `from`, counted from there.
fn within(ranges: &[OwnedRange], from: i64, len: i64) -> Vec<OwnedRange> {
    let cut = |range: &OwnedRange| {
        let start = range.own_at.max(from);
        let len = (range.own_at + range.len).min(from + len) - start;
        let flat_at = range.flat_at + start - range.own_at;
        (len > 0).then_some(OwnedRange { flat_at, own_at: start - from, len })
    };
    ranges.iter().filter_map(cut).collect()
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
    let sums: Vec<Tensor> = spans(gradient, SPAN).map(sum).collect();
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

/// Start and length of each span of a flat tensor, of at most so many elements.
fn spans(flat: &Tensor, most: i64) -> impl Iterator<Item = (i64, i64)> + use<> {
    let len = flat.size()[0];
    (0..len).step_by(most as usize).map(move |from| (from, most.min(len - from)))
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

    /// Five updates from the same start: weights and moments.
    fn five(update: impl Fn(&Update<'_>, [&Tensor; 3], &Tensor, &[OwnedRange])) -> [Tensor; 3] {
        tch::manual_seed(1);
        let algorithm = Algorithm { weight_decay: 0.1, ..Algorithm::default() };
        let zeros = || Tensor::zeros([5000], (Kind::Float, Device::Cpu));
        let state = [random(5000), zeros(), zeros()];
        for number in 1..=5 {
            let by = Update { number, rate: 1e-2, algorithm: &algorithm };
            update(&by, state.each_ref(), &random(5000), &[range(7, 1000), range(3000, 1999)]);
        }
        state
    }

    #[test]
    fn one_pass_and_parts_update_as_many_passes_over_the_whole_do() {
        let whole = five(|by, state, gradient, decayed| by.in_spans(state, gradient, decayed));
        let one_pass = five(|by, state, gradient, decayed| by.at_once(state, gradient, decayed));
        // Decayed ranges begin and end within parts, and pass from one to the next.
        let parts = five(|by, state, gradient, decayed| by.in_parts(640, state, gradient, decayed));
        for (how, ours) in [("one pass", one_pass), ("parts", parts)] {
            for (ours, whole) in ours.iter().zip(&whole) {
                let off = f64::try_from((ours - whole).abs().max()).unwrap_or(f64::NAN);
                assert!(off < 1e-6, "{how}: off by {off}");
            }
        }
        tch::manual_seed(1);
        let moved = f64::try_from((&whole[0] - random(5000)).abs().max()).unwrap_or(f64::NAN);
        assert!(moved > 1e-2, "moved by {moved}");
    }

    #[test]
    fn parts_of_ranges_are_counted_from_their_beginning() {
        let all = [range(2, 3), range(8, 6)];
        let starts = |from, len| {
            within(&all, from, len).iter().map(|range| (range.own_at, range.len)).collect::<Vec<_>>()
        };
        assert_eq!(starts(0, 4), [(2, 2)]);
        assert_eq!(starts(4, 6), [(0, 1), (4, 2)]);
        assert_eq!(starts(10, 100), [(0, 4)]);
        assert_eq!(starts(5, 3), []);
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
