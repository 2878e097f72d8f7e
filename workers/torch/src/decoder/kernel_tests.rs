//! The kernels beside the same computation by libtorch.

use millrace_kernels::*;
use tch::{Device, Kind, Tensor};

use super::attention::Heads;

fn random(shape: [i64; 2], kind: Kind) -> Tensor {
    Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(kind)
}

/// The largest difference from `x` times the transpose of `weight`, computed in f64.
fn off(product: &Tensor, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> f64 {
    let [x, weight] = [x, weight].map(|one| one.to_kind(Kind::Double));
    let mut expected = x.matmul(&weight.tr());
    if let Some(bias) = bias {
        expected += bias.to_kind(Kind::Double);
    }
    apart(product, &expected)
}

/// Widths that fill the loops' lanes, that leave some over, and that are less than one.
const WIDTHS: [i64; 3] = [576, 83, 7];

#[test]
fn packed_products_are_plain_products_for_any_number_of_rows() {
    tch::manual_seed(1);
    for width in WIDTHS {
        let (weight, bias) = (random([97, width], Kind::Float), random([1, 97], Kind::Float).view([97]));
        let packed = pack(&weight, 32).expect("this libtorch has oneDNN");
        for rows in [1, 2, 31, 32, 33, 200] {
            let x = random([rows, width], Kind::Float);
            for bias in [None, Some(&bias)] {
                let off = off(&multiply(&x, &packed, bias, None), &x, &weight, bias);
                assert!(off < 1e-4, "width={width} rows={rows}: off by {off}");
            }
            let onto = random([rows, 97], Kind::Float);
            let added = multiply(&x, &packed, Some(&bias), Some(&onto)) - onto;
            let off = off(&added, &x, &weight, Some(&bias));
            assert!(off < 1e-4, "width={width} rows={rows}: off by {off} with what is added");
        }
    }
}

/// Calls `check` with vectors of each width that this processor has.
fn with_all_lanes(check: impl Fn()) {
    for lanes in [4, 8, 16] {
        limit_lanes(lanes);
        check();
    }
}

/// The largest difference between two tensors.
fn apart(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.size(), b.size());
    f64::try_from((a.to_kind(Kind::Double) - b.to_kind(Kind::Double)).abs().max()).unwrap()
}

/// What one rounding of `x` may be off.
fn bound(x: &Tensor) -> f64 {
    let largest = f64::try_from(x.abs().max().to_kind(Kind::Double)).unwrap();
    largest * if x.kind() == Kind::Float { 2e-6 } else { 1.0 / 128.0 }
}

const KINDS: [Kind; 2] = [Kind::Float, Kind::BFloat16];

fn rms_norm(x: &Tensor, weight: &Tensor, epsilon: f64) -> Tensor {
    let x = x.to_kind(Kind::Double);
    let mean = x.square().mean_dim([-1_i64].as_slice(), true, Kind::Double);
    x * (mean + epsilon).rsqrt() * weight.to_kind(Kind::Double)
}

#[test]
fn rows_are_normalised_where_they_lie_apart_too() {
    tch::manual_seed(4);
    with_all_lanes(|| {
        for (kind, width) in KINDS.into_iter().flat_map(|kind| WIDTHS.map(|width| (kind, width))) {
            let weight = random([1, width], kind).view([width]);
            let x = random([33, width + 5], kind).narrow(1, 2, width);
            let normal = normalise(&x, &weight, 1e-5);
            let off = apart(&normal, &rms_norm(&x, &weight, 1e-5));
            assert!(normal.kind() == kind && off <= bound(&normal), "{kind:?} {width}: off by {off}");
        }
    });
}

#[test]
fn heads_are_normalised_and_turned_in_place() {
    tch::manual_seed(5);
    with_all_lanes(|| {
        for (kind, width) in KINDS.into_iter().flat_map(|kind| [64, 40, 6].map(|width| (kind, width))) {
            let (rows, queries, keys) = (5, 3, 2);
            let norms = [(); 2].map(|()| random([1, width], kind).view([width]));
            let angles = [(); 2].map(|()| random([rows, width], kind).view([rows, 1, width]));
            for norms in [None, Some(&norms)] {
                let all = random([rows, (queries + keys + 1) * width], kind);
                let before = all.copy();
                let x = all.narrow(1, 0, (queries + keys) * width);
                let [cos, sin] = &angles;
                turn_heads(&x, Turn { queries, norms, epsilon: 1e-6, cos, sin });
                let heads = before.view([rows, -1, width]).to_kind(Kind::Double);
                let normal = |heads: Tensor, which: usize| match norms {
                    Some(norms) => rms_norm(&heads, &norms[which], 1e-6),
                    None => heads,
                };
                let parts =
                    [normal(heads.narrow(1, 0, queries), 0), normal(heads.narrow(1, queries, keys), 1)];
                let heads = Tensor::cat(&parts, 1);
                let turned = &heads * cos + heads.roll([width / 2], [2]) * sin;
                let off = apart(&x, &turned.view_as(&x));
                // Two roundings where there are norms, and sums of two terms.
                assert!(off <= 3.0 * bound(&x), "{kind:?} {width}: off by {off}");
                let rest = (queries + keys) * width;
                assert_eq!(
                    all.narrow(1, rest, width),
                    before.narrow(1, rest, width),
                    "what follows is as it was"
                );
            }
        }
    });
}

#[test]
fn a_gate_is_silu_also_far_from_zero() {
    tch::manual_seed(6);
    with_all_lanes(|| {
        for (kind, width) in KINDS.into_iter().flat_map(|kind| WIDTHS.map(|width| (kind, width))) {
            let both = random([9, 2 * width], kind) * 30;
            let gated = gate(&both);
            let (gates, ups) = (both.narrow(1, 0, width), both.narrow(1, width, width));
            let expected = gates.to_kind(Kind::Double).silu() * ups.to_kind(Kind::Double);
            let off = apart(&gated, &expected);
            assert!(off <= bound(&gated), "{kind:?} {width}: off by {off}");
        }
        let extremes = [-3e38_f32, -200.0, -88.5, 0.0, 88.5, 200.0].map(|x| [x, 1.0]).concat();
        let gated = gate(&Tensor::from_slice(&extremes).view([6, 2]));
        let gated = Vec::<f32>::try_from(gated.view([6])).unwrap();
        assert!(gated[..4].iter().all(|x| x.abs() < 1e-30) && gated[4..] == [88.5, 200.0], "{gated:?}");
    });
}

#[test]
fn rows_attend_to_their_blocks_and_keep_what_they_bring() {
    tch::manual_seed(7);
    let block = 16;
    // Up to a block's edge, one beyond, and the first position.
    let lengths = [1_i64, 15, 16, 17, 40, 64];
    let (rows, table, blocks) = (lengths.len() as i64, 4, 40);
    with_all_lanes(|| {
        for (kind, width) in KINDS.into_iter().flat_map(|kind| [64, 40, 6].map(|width| (kind, width))) {
            let heads = Heads::with(6, 2, width);
            let cached = [(); 2].map(|()| random([blocks * block, 2 * width], kind));
            let tables = Tensor::randperm(blocks, (Kind::Int64, Device::Cpu)).narrow(0, 0, rows * table);
            let tables = tables.view([rows, table]).contiguous();
            let seen = Tensor::from_slice(&lengths);
            let own = random([rows, 6 * width + 4 * width], kind);
            let [q, k, v] =
                [(0, 6), (6, 2), (8, 2)].map(|(at, heads)| own.narrow(1, at * width, heads * width));
            let last = &seen - 1;
            let at = tables.gather(1, &last.divide_scalar_mode(block, "floor").unsqueeze(1), false);
            let cells = at.squeeze_dim(1) * block + last.remainder(block);
            let [keys, values] =
                [(0, &k), (1, &v)].map(|(which, own)| cached[which].index_copy(0, &cells, own));
            let pages =
                Pages { keys: &cached[0], values: &cached[1], tables: &tables, lengths: &seen, block: 16 };
            let own = Own { keys: &k, values: &v, cells: &cells };
            let attended = attend_rows(&q, Some(own), &pages, heads.queries());
            assert!(
                cached[0] == keys && cached[1] == values,
                "what they bring is in its cells, nothing else changed"
            );
            assert_eq!(attend_rows(&q, None, &pages, heads.queries()), attended, "as if it had been there");
            for (row, &length) in lengths.iter().enumerate() {
                let row = row as i64;
                let places = tables.select(0, row).unsqueeze(1) * block
                    + Tensor::arange(block, (Kind::Int64, Device::Cpu));
                let of = |all: &Tensor| {
                    all.index_select(0, &places.view([-1]))
                        .narrow(0, 0, length)
                        .to_kind(Kind::Double)
                        .unsqueeze(0)
                };
                let mask = Tensor::zeros([1, 1, 1, length], (Kind::Double, Device::Cpu));
                let q = q.narrow(0, row, 1).to_kind(Kind::Double).reshape([1, 1, -1]);
                let expected = heads.attend(&q, &of(&keys), &of(&values), Some(&mask));
                let one = attended.narrow(0, row, 1);
                let off = apart(&one, &expected);
                assert!(off <= 2.0 * bound(&one), "{kind:?} {width}, {length} seen: off by {off}");
            }
        }
    });
}

#[test]
fn a_few_rows_of_bf16_are_multiplied_to_one_rounding() {
    tch::manual_seed(2);
    with_all_lanes(|| {
        for width in WIDTHS {
            let weight = random([131, width], Kind::BFloat16);
            for rows in [1, 3, 4] {
                let x = random([rows, width], Kind::BFloat16);
                let product = multiply_rows(&x, &weight);
                assert_eq!(product.kind(), Kind::BFloat16);
                // Sums are in f32, so that what is left is the rounding of the result to 8 bits.
                let largest = f64::try_from(product.abs().max().to_kind(Kind::Double)).unwrap();
                let off = off(&product, &x, &weight, None);
                assert!(off <= largest / 256.0, "width={width} rows={rows}: off by {off} of {largest}");
            }
        }
    });
}

#[test]
fn rows_that_do_not_lie_together_are_multiplied_too() {
    tch::manual_seed(3);
    let weight = random([64, 40], Kind::BFloat16);
    let x = random([40, 2], Kind::BFloat16).tr();
    assert_eq!(multiply_rows(&x, &weight), multiply_rows(&x.contiguous(), &weight));
}

/// One row of one block, as numbers of tables, lengths, cells and the block: refused if any leads
/// out of the cache.
fn attended(table: i64, length: i64, cell: Option<[i64; 2]>, block: usize) -> bool {
    let heads = Heads::with(1, 1, 16);
    let rows = || random([2, 16], Kind::Float);
    let [q, k, v] = [(); 3].map(|()| rows());
    let [keys, values] = [(); 2].map(|()| random([32, 16], Kind::Float));
    let tables = Tensor::from_slice(&[0_i64, table]).view([2, 1]);
    let lengths = Tensor::from_slice(&[16, length]);
    let cells = Tensor::from_slice(&cell.unwrap_or_default());
    let pages = Pages { keys: &keys, values: &values, tables: &tables, lengths: &lengths, block };
    let own = cell.is_some().then_some(Own { keys: &k, values: &v, cells: &cells });
    let attend = || attend_rows(&q, own, &pages, heads.queries());
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(attend)).is_ok()
}

#[test]
fn pages_that_lead_out_of_the_cache_are_refused() {
    assert!(
        attended(1, 16, None, 16) && attended(1, 1, Some([0, 31]), 16),
        "the last block, and the last cell"
    );
    assert!(!attended(2, 16, None, 16) && !attended(-1, 16, None, 16), "there is no such block");
    assert!(!attended(1, 17, None, 16) && !attended(1, 0, None, 16), "a row sees 1 to all of its table");
    assert!(!attended(1, 16, Some([0, 32]), 16) && !attended(1, 16, Some([-1, 0]), 16), "no such cell");
    assert!(!attended(1, 16, Some([3, 3]), 16), "two rows in one cell");
    assert!(!attended(1, 16, None, 0), "a block has positions");
}
