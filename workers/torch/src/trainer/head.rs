//! The output layer: from the last layer's rows to log-probabilities and back, in chunks of rows.
//! The logits of all rows would take more memory than the model. The gradient is written by hand,
//! so that each chunk is computed once and nothing of it is kept.

use tch::{Kind, Tensor};

use super::logits::Logits;
use crate::gpu_kernels;
use crate::math::entropy::entropy;

/// Bytes of a chunk's logits on a CPU, of f32: enough rows to be worth a pass over the head's
/// gradient.
const CPU_CHUNK: i64 = 64 << 20;
/// On a GPU.
const GPU_CHUNK: i64 = 512 << 20;
/// On a GPU in bf16: logits and their gradient take this each. Each chunk costs a pass over the head's
/// gradient in f32.
const HALF_CHUNK: i64 = 1 << 30;
/// Rows of a chunk in bf16 are a multiple of this, as matrix products like it.
const HALF_ROWS: i64 = 64;

/// The output layer, and the distribution that tokens were drawn from.
#[derive(Debug)]
pub(super) struct Head {
    /// `[below, width]`: the rows of tokens that could be drawn, in the kind of the computation.
    weight: Tensor,
    /// Divides the logits.
    temperature: f64,
    /// Bytes of a chunk's logits.
    chunk: i64,
    /// Logits stay in bf16.
    half: bool,
}

/// What a chunk's rows were seen to be, before their gradient.
#[derive(Debug)]
struct Chunk {
    /// `[C]` of f32.
    log_p: Tensor,
    /// `[C]` of f32.
    entropy: Tensor,
    kept: Kept,
}

/// What the gradient is made from.
#[derive(Debug)]
enum Kept {
    /// `[C, below]` of f32.
    LogProbabilities(Tensor),
    Logits(Logits),
}

/// The derivatives of a loss of C tokens by their log-probabilities and entropies; `None` is zeros.
#[derive(Debug)]
pub(super) struct LossGradients {
    pub(super) log_p: Tensor,
    pub(super) entropy: Option<Tensor>,
}

impl Head {
    pub(super) fn new(weight: &Tensor, below: i64, temperature: f64) -> Self {
        let half = weight.kind() == Kind::BFloat16 && gpu_kernels::train(weight.device());
        let chunk = match weight.device().is_cuda() {
            true if half => HALF_CHUNK,
            true => GPU_CHUNK,
            false => CPU_CHUNK,
        };
        Self { weight: weight.detach().narrow(0, 0, below), temperature, chunk, half }
    }

    /// Log-probability of each target and the entropy where it was drawn, from rows `[M, width]`;
    /// `[M]` of f32 both.
    pub(super) fn look(&self, hidden: &Tensor, targets: &Tensor) -> (Tensor, Tensor) {
        let mut seen = (Vec::new(), Vec::new());
        let _guard = tch::no_grad_guard();
        for (from, rows) in self.chunks(hidden) {
            let chunk = self.chunk(&hidden.narrow(0, from, rows), &targets.narrow(0, from, rows));
            seen.0.push(chunk.log_p);
            seen.1.push(chunk.entropy);
        }
        (Tensor::cat(&seen.0, 0), Tensor::cat(&seen.1, 0))
    }

    /// Forward and backward. `loss` gets the start of a chunk of tokens, their log-probabilities
    /// and their entropies, and returns the loss gradients. The gradient of the weight is added to
    /// `gradient` `[vocabulary, width]` of f32; that of the rows `[M, width]` is returned.
    pub(super) fn backward(
        &self,
        hidden: &Tensor,
        targets: &Tensor,
        gradient: &Tensor,
        mut loss: impl FnMut(i64, &Tensor, &Tensor) -> LossGradients,
    ) -> Tensor {
        let _guard = tch::no_grad_guard();
        let mut gradient = gradient.narrow(0, 0, self.weight.size()[0]);
        let mut parts = Vec::new();
        for (from, rows) in self.chunks(hidden) {
            let (hidden, targets) = (hidden.narrow(0, from, rows), targets.narrow(0, from, rows));
            let Chunk { log_p, entropy, kept } = self.chunk(&hidden, &targets);
            let loss_gradients = loss(from, &log_p, &entropy);
            let logits = match kept {
                Kept::Logits(logits) => logits.gradient(&targets, &loss_gradients),
                Kept::LogProbabilities(all) => {
                    self.logits_gradient(all, &targets, &entropy, &loss_gradients).to_kind(hidden.kind())
                }
            };
            parts.push(logits.matmul(&self.weight));
            let weights = logits.tr();
            if hidden.kind() == Kind::Float {
                let _ = gradient.addmm_(&weights, &hidden);
            } else {
                gradient += weights.matmul(&hidden);
            }
        }
        Tensor::cat(&parts, 0)
    }

    /// The gradient by the logits z, with p the probabilities and H the entropy: `∂ log p_t / ∂z_j
    /// = [j = t] − p_j` and `∂H / ∂z_j = −p_j (log p_j + H)`.
    fn logits_gradient(
        &self,
        all: Tensor,
        targets: &Tensor,
        entropy: &Tensor,
        loss_gradients: &LossGradients,
    ) -> Tensor {
        let by_log_p = loss_gradients.log_p.unsqueeze(1);
        let mut gradient = all.exp();
        match &loss_gradients.entropy {
            None => drop(gradient.g_mul_(&by_log_p)),
            Some(by_entropy) => {
                let mut loss_gradient = all;
                let _ = loss_gradient.g_add_(&entropy.unsqueeze(1));
                let _ = loss_gradient.g_mul_(&by_entropy.unsqueeze(1));
                let _ = loss_gradient.g_add_(&by_log_p);
                let _ = gradient.g_mul_(&loss_gradient);
            }
        }
        let _ = gradient.neg_();
        let _ = gradient.scatter_add_(1, &targets.unsqueeze(1), &by_log_p);
        if self.temperature == 1.0 { gradient } else { gradient.g_div_scalar_(self.temperature) }
    }

    /// Log-probabilities of all tokens that could be drawn, `[C, below]` of f32.
    fn log_probabilities(&self, hidden: &Tensor) -> Tensor {
        let mut logits = hidden.linear(&self.weight, None::<Tensor>);
        if self.temperature != 1.0 {
            logits = logits.to_kind(Kind::Float).g_div_scalar_(self.temperature);
        }
        logits.log_softmax(-1, Kind::Float)
    }

    /// Sees rows `[C, width]`.
    fn chunk(&self, hidden: &Tensor, targets: &Tensor) -> Chunk {
        if self.half {
            let logits = Logits::of(hidden, &self.weight, targets, self.temperature);
            let (log_p, entropy) = (logits.log_p.shallow_clone(), logits.entropy.shallow_clone());
            return Chunk { log_p, entropy, kept: Kept::Logits(logits) };
        }
        let all = self.log_probabilities(hidden);
        let (log_p, entropy) = (gather(&all, targets), entropy(&all));
        Chunk { log_p, entropy, kept: Kept::LogProbabilities(all) }
    }

    fn chunks(&self, hidden: &Tensor) -> impl Iterator<Item = (i64, i64)> + use<> {
        let number = if self.half { size_of::<u16>() } else { size_of::<f32>() };
        let (rows, row) = (hidden.size()[0], self.weight.size()[0] * number as i64);
        let mut most = (self.chunk / row).max(1);
        if self.half && most < rows {
            // Of like size, so that none has few rows.
            let chunks = (rows + most - 1) / most;
            most = ((rows + chunks - 1) / chunks + HALF_ROWS - 1) / HALF_ROWS * HALF_ROWS;
        }
        (0..rows).step_by(most as usize).map(move |from| (from, most.min(rows - from)))
    }
}

fn gather(all: &Tensor, targets: &Tensor) -> Tensor {
    all.gather(1, &targets.unsqueeze(1), false).squeeze_dim(1)
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    const ROWS: i64 = 7;

    /// The same by autograd, on all rows at once: gradients of the rows and of the weight.
    fn by_autograd(
        weight: &Tensor,
        hidden: &Tensor,
        targets: &Tensor,
        loss_gradients: &LossGradients,
    ) -> [Tensor; 2] {
        let leaves = [weight, hidden].map(|leaf| leaf.detach().set_requires_grad(true));
        let all = (leaves[1].matmul(&leaves[0].narrow(0, 0, 9).tr()) / 0.8).log_softmax(-1, Kind::Double);
        let mut loss = (gather(&all, targets) * &loss_gradients.log_p).sum(Kind::Double);
        if let Some(loss_gradient) = &loss_gradients.entropy {
            loss = (entropy(&all) * loss_gradient).sum(Kind::Double) + loss;
        }
        loss.backward();
        [leaves[1].grad(), leaves[0].grad()]
    }

    #[test]
    fn the_gradient_by_hand_is_autograds_whatever_the_chunks() {
        tch::manual_seed(1);
        let options = (Kind::Float, Device::Cpu);
        let (weight, hidden) = (Tensor::randn([11, 5], options), Tensor::randn([ROWS, 5], options));
        let targets = Tensor::from_slice(&[0_i64, 8, 3, 3, 1, 7, 2]);
        let loss_gradient = || Tensor::randn([ROWS], options);
        for loss_gradients in [
            LossGradients { log_p: loss_gradient(), entropy: Some(loss_gradient()) },
            LossGradients { log_p: loss_gradient(), entropy: None },
        ] {
            let expected = by_autograd(&weight, &hidden, &targets, &loss_gradients);
            // One row, three rows, all rows; a row's logits are counted as 9 of f32.
            for chunk in [1, 3 * 9 * 4, 1 << 20] {
                let head = Head { weight: weight.narrow(0, 0, 9), temperature: 0.8, chunk, half: false };
                let gradient = weight.zeros_like();
                let part = |of: &Tensor, from, log_p: &Tensor| of.narrow(0, from, log_p.size()[0]);
                let rows = head.backward(&hidden, &targets, &gradient, |from, log_p, _| LossGradients {
                    log_p: part(&loss_gradients.log_p, from, log_p),
                    entropy: loss_gradients
                        .entropy
                        .as_ref()
                        .map(|loss_gradient| part(loss_gradient, from, log_p)),
                });
                for (ours, theirs) in [rows, gradient].iter().zip(&expected) {
                    let off = f64::try_from((ours - theirs).abs().max()).unwrap();
                    assert!(off < 1e-5, "chunk={chunk}: off by {off}");
                }
            }
        }
    }

    #[test]
    fn logits_in_bf16_give_what_logits_in_f32_do() {
        tch::manual_seed(3);
        let random =
            |shape: [i64; 2]| Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(Kind::BFloat16);
        // More rows than a chunk has, and columns that are no multiple of its padding.
        let (weight, hidden) = (random([90, 32]), random([150, 32]));
        let targets = Tensor::arange(150, (Kind::Int64, Device::Cpu)).remainder(83);
        let loss_gradient = || Tensor::randn([150], (Kind::Float, Device::Cpu));
        for loss_gradients in [
            LossGradients { log_p: loss_gradient(), entropy: Some(loss_gradient()) },
            LossGradients { log_p: loss_gradient(), entropy: None },
        ] {
            let run = |half: bool, chunk: i64| {
                let head = Head { weight: weight.narrow(0, 0, 83), temperature: 0.8, chunk, half };
                let gradient = Tensor::zeros([90, 32], (Kind::Float, Device::Cpu));
                let mut seen = Vec::new();
                let rows = head.backward(&hidden, &targets, &gradient, |from, log_p, entropy| {
                    let part = |of: &Tensor| of.narrow(0, from, log_p.size()[0]);
                    seen.push(Tensor::stack(&[log_p, entropy], 1));
                    LossGradients {
                        log_p: part(&loss_gradients.log_p),
                        entropy: loss_gradients.entropy.as_ref().map(part),
                    }
                });
                let looked = head.look(&hidden, &targets);
                [Tensor::cat(&seen, 0), Tensor::stack(&[looked.0, looked.1], 1), gradient, rows]
            };
            for (index, (ours, theirs)) in run(true, 64 * 83 * 2).iter().zip(&run(false, 1 << 20)).enumerate()
            {
                let norm = |of: &Tensor| f64::try_from(of.to_kind(Kind::Double).norm()).unwrap_or(f64::NAN);
                let off = norm(&(ours - theirs)) / norm(theirs);
                // What is seen is in f32; gradients are rounded to bf16.
                assert!(off < if index < 2 { 1e-6 } else { 4e-3 }, "{index}: off by {off}");
            }
        }
    }
}
