// libtorch's AdamW in one pass.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "millrace-kernels/src/training/training.h"

namespace millrace::training {

void adamw(
    const at::Tensor* weights,
    const at::Tensor* gradient,
    const at::Tensor* first,
    const at::Tensor* second,
    rust::Slice<const std::int64_t> ranges,
    double step,
    double rate,
    double beta1,
    double beta2,
    double weight_decay,
    double epsilon) {
  at::NoGradGuard none;
  TORCH_CHECK(ranges.size() % 2 == 0, "a range is a start and a length");
  std::vector<at::Tensor> parts[4], steps;
  const auto count = at::full({}, step, weights->options().dtype(at::kFloat));
  for (std::size_t i = 0; i < ranges.size(); i += 2) {
    const at::Tensor* all[4] = {weights, gradient, first, second};
    for (int which = 0; which < 4; ++which) {
      TORCH_CHECK(all[which]->scalar_type() == at::kFloat && all[which]->is_contiguous());
      parts[which].push_back(all[which]->detach().narrow(0, ranges[i], ranges[i + 1]));
    }
    steps.push_back(count);
  }
  if (!steps.empty()) {
    at::_fused_adamw_(
        parts[0], parts[1], parts[2], parts[3], {}, steps, rate, beta1, beta2, weight_decay, epsilon, /*amsgrad=*/false,
        /*maximize=*/false);
  }
}

} // namespace millrace::training
