//! The critic: one more row of the model's head, on the rows where tokens were sampled.

use millrace_schemas::submit::Critic;
use tch::{Kind, Tensor};

use super::pack::LossInputs;
use crate::math::aggregate::add_up;
use crate::math::value_loss::value_loss;

/// The result of one backward.
#[derive(Debug)]
pub(super) struct Learnt {
    /// The gradient by the rows, `[M, width]`.
    pub(super) by_hidden: Tensor,
    /// The loss of each token, without its coefficient. `[M]`
    pub(super) loss: Tensor,
}

/// The values of rows `[M, width]`, `[M]` of f32 without gradient. `weight` is `[1, width]`.
pub(super) fn values(weight: &Tensor, hidden: &Tensor) -> Tensor {
    tch::no_grad(|| wide(hidden).matmul(&wide(weight).tr()).squeeze_dim(1))
}

/// Adds the gradient of this forward's share of the loss to `gradient` `[1, width]` of f32.
///
/// # Panics
/// The tokens have no returns.
pub(super) fn backward(
    weight: &Tensor,
    hidden: &Tensor,
    inputs: &LossInputs,
    critic: &Critic,
    gradient: &Tensor,
) -> Learnt {
    let aim = inputs.tokens.aim.as_ref().expect("what is trained beside a critic has returns");
    let leaf = values(weight, hidden).set_requires_grad(true);
    let loss = value_loss(&leaf, &aim.values, &aim.returns, critic.clip);
    (add_up(&loss, &inputs.tokens.mask, &inputs.share) * critic.coefficient).backward();
    let loss_gradients = leaf.grad().unsqueeze(1);
    let by_hidden = loss_gradients.matmul(&wide(weight)).to_kind(hidden.kind());
    let _ = gradient.shallow_clone().g_add_(&loss_gradients.tr().matmul(&wide(hidden)));
    Learnt { by_hidden, loss: loss.detach() }
}

fn wide(x: &Tensor) -> Tensor {
    x.detach().to_kind(Kind::Float)
}
