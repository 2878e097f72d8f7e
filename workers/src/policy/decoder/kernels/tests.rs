use tch::{Device, Kind};

use super::*;

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
    assert_eq!(product.size(), expected.size());
    f64::try_from((product.to_kind(Kind::Double) - expected).abs().max()).unwrap()
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
                let off = off(&multiply(&x, &packed, bias), &x, &weight, bias);
                assert!(off < 1e-4, "width={width} rows={rows}: off by {off}");
            }
        }
    }
}

#[test]
fn a_few_rows_of_bf16_are_multiplied_to_one_rounding() {
    tch::manual_seed(2);
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
}

#[test]
fn rows_that_do_not_lie_together_are_multiplied_too() {
    tch::manual_seed(3);
    let weight = random([64, 40], Kind::BFloat16);
    let x = random([40, 2], Kind::BFloat16).tr();
    assert_eq!(multiply_rows(&x, &weight), multiply_rows(&x.contiguous(), &weight));
}
