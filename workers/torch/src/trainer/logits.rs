//! A chunk's logits in bf16, as a GPU's head keeps them: softmax and gradient read them in f32 and write
//! nothing wider.

use millrace_kernels::training;
use tch::{Kind, Tensor};

use super::head::LossGradients;

/// Columns are padded to a multiple of this.
const COLUMNS: i64 = 16;

/// Logits of C rows, and what was seen of their softmax.
#[derive(Debug)]
pub(super) struct Logits {
    /// `[C, padded]` of bf16; −∞ in the padding.
    logits: Tensor,
    /// Columns without the padding.
    below: i64,
    temperature: f64,
    /// Logarithm of the sum of `e^(logit / temperature)`. `[C]` of f32
    log_sum: Tensor,
    /// Of the targets. `[C]` of f32
    pub(super) log_p: Tensor,
    /// `[C]` of f32.
    pub(super) entropy: Tensor,
}

impl Logits {
    /// Those of rows `hidden` `[C, width]` by `weight` `[below, width]`, both bf16. With m the largest, `u
    /// = (z − m) / T`, `s = Σ e^u`: `log p = u − log s`, and the entropy is `log s − Σ u e^u / s`.
    pub(super) fn of(hidden: &Tensor, weight: &Tensor, targets: &Tensor, temperature: f64) -> Self {
        let (rows, below) = (hidden.size()[0], weight.size()[0]);
        let padded = (below + COLUMNS - 1) / COLUMNS * COLUMNS;
        let logits = Tensor::empty([rows, padded], (hidden.kind(), hidden.device()));
        let _ = hidden.mm_out(&logits.narrow(1, 0, below), &weight.tr());
        if padded > below {
            let _ = logits.narrow(1, below, padded - below).fill_(f64::NEG_INFINITY);
        }
        let largest = logits.amax([-1_i64].as_slice(), false).to_kind(Kind::Float);
        let sums = training::exponential_sums(&logits, &largest, temperature);
        let (sum, weighted) = (sums.select(1, 0), sums.select(1, 1));
        let log = sum.log();
        let target = logits.gather(1, &targets.unsqueeze(1), false).squeeze_dim(1).to_kind(Kind::Float);
        Self {
            log_p: (target - &largest) / temperature - &log,
            entropy: &log - weighted / sum,
            log_sum: largest / temperature + log,
            logits,
            below,
            temperature,
        }
    }

    /// The gradient by the logits `[C, below]` of bf16, as `Head::logits_gradient` has it.
    pub(super) fn gradient(self, targets: &Tensor, loss_gradients: &LossGradients) -> Tensor {
        let scaled = |of: &Tensor| of / self.temperature;
        let by_log_p = scaled(&loss_gradients.log_p);
        let (a, b) = match &loss_gradients.entropy {
            None => (-&by_log_p, by_log_p.zeros_like()),
            Some(by_entropy) => {
                let by_entropy = scaled(by_entropy);
                (-(&by_log_p + &by_entropy * &self.entropy), -by_entropy)
            }
        };
        let inverse = self.log_sum.full_like(self.temperature.recip());
        let rows = Tensor::stack(&[&self.log_sum, &a, &b, &inverse], 1);
        let mut gradient = training::logits_gradient(&self.logits, &rows);
        // In f32 before it is rounded: near 1 the two parts cancel out.
        let target = self.log_p.exp() * (a + b * &self.log_p) + by_log_p;
        let _ = gradient.scatter_(1, &targets.unsqueeze(1), &target.to_kind(gradient.kind()).unsqueeze(1));
        gradient.narrow(1, 0, self.below)
    }
}
