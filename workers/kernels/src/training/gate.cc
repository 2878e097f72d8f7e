// SwiGLU's middle, with its gradient: Shazeer, "GLU Variants Improve Transformer", 2020.

#include <torch/csrc/autograd/custom_function.h>

#include "millrace-kernels/src/training/elementwise.h"
#include "millrace-kernels/src/training/training.h"

namespace millrace::training {

namespace {

// silu(gate) * up
MILLRACE_PASS(
    millrace_gate, 2, kWords, template <typename T> T millrace_gate(T gate_word, T up_word) {
      auto gates = millrace_word(gate_word), ups = millrace_word(up_word), out = gates;
      for (int i = 0; i < 4; ++i) {
        float gate = millrace_wide(gates.half[i]);
        out.half[i] = millrace_half(gate / (1.0f + expf(-gate)) * millrace_wide(ups.half[i]));
      }
      return out.whole;
    })

// The gradient by the gate (`which` 0) or by the up (1): with s the sigmoid of the gate, by the gate it is
// `by_out * up * s * (1 + gate * (1 - s))`, and by the up `by_out * gate * s`.
MILLRACE_PASS(
    millrace_gate_backward, 4, kWords,
    template <typename T> T millrace_gate_backward(T by_out_word, T gate_word, T up_word, T which) {
      auto by_outs = millrace_word(by_out_word), gates = millrace_word(gate_word), ups = millrace_word(up_word);
      auto out = gates;
      for (int i = 0; i < 4; ++i) {
        float by_out = millrace_wide(by_outs.half[i]), gate = millrace_wide(gates.half[i]);
        float s = 1.0f / (1.0f + expf(-gate));
        float by_gate = millrace_wide(ups.half[i]) * s * (1.0f + gate * (1.0f - s));
        out.half[i] = millrace_half(by_out * (which == 0 ? by_gate : gate * s));
      }
      return out.whole;
    })

struct Gate : torch::autograd::Function<Gate> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& both) {
    context->save_for_backward({both});
    const auto parts = words(both).chunk(2, 1);
    return compute(millrace_gate_pass(), {parts[0], parts[1]}).view(at::kBFloat16);
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, const torch::autograd::variable_list& gradients) {
    const auto both = context->get_saved_variables()[0];
    const auto parts = words(both).chunk(2, 1);
    const auto by_out = words(gradients[0].contiguous()).unsqueeze(1);
    // [rows, 2, words of a half]: the gradient by the gates, then that by the ups.
    const auto by_both = compute(
        millrace_gate_backward_pass(), {by_out, parts[0].unsqueeze(1), parts[1].unsqueeze(1), halves(by_out)});
    return {by_both.contiguous().view(at::kBFloat16).view(both.sizes())};
  }
};

} // namespace

at::Tensor* gate(const at::Tensor* both) {
  TORCH_CHECK(both->dim() == 2 && both->scalar_type() == at::kBFloat16 && both->is_contiguous());
  TORCH_CHECK(both->size(1) % 8 == 0, "inner width=", both->size(1) / 2, " is not a multiple of 4");
  return new at::Tensor(Gate::apply(*both));
}

} // namespace millrace::training
