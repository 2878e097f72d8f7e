#include "millrace-kernels/src/training/elementwise.h"

#include <c10/util/SmallVector.h>

#include "millrace-kernels/src/cuda/runtime.h"

// Declared here rather than included, and weak: a libtorch without CUDA has neither header nor symbol.
namespace at::cuda {
__attribute__((weak)) c10::SmallVector<at::Tensor> CompileAndLaunchKernel(
    const std::string& code_string,
    const std::string& kernel_name,
    const int num_outputs,
    const c10::SmallVector<at::Tensor>& tensors,
    const c10::SmallVector<at::Scalar>& extra_args,
    bool return_by_ref);
} // namespace at::cuda

namespace millrace::training {

namespace {

at::Tensor on_cpu(const Pass& pass, const c10::SmallVector<at::Tensor>& words) {
  at::Tensor out;
  at::TensorIteratorConfig config;
  config.add_owned_output(out).promote_inputs_to_common_dtype(true);
  for (const auto& one : words) {
    config.add_const_input(one);
  }
  auto iterator = config.build();
  pass.on_cpu(iterator);
  return iterator.output();
}

} // namespace

at::Tensor compute(const Pass& pass, std::initializer_list<at::Tensor> words) {
  const c10::SmallVector<at::Tensor> all(words.begin(), words.end());
  TORCH_CHECK(!all.empty() && all.size() <= 8, pass.name, " has inputs=", all.size(), ", of 1 to 8");
  for (const auto& one : all) {
    TORCH_CHECK(one.scalar_type() == at::kLong && one.device() == all.front().device());
  }
  if (!all.front().is_cuda()) {
    return on_cpu(pass, all);
  }
  TORCH_CHECK(at::cuda::CompileAndLaunchKernel != nullptr, "this libtorch has no CUDA");
  cuda::load_builtins();
  return at::cuda::CompileAndLaunchKernel(pass.source, pass.name, 1, all, {}, false).front();
}

at::Tensor words(const at::Tensor& numbers) {
  // Words take no gradient, and views of another type are not made of what takes one.
  return numbers.detach().view(at::kLong);
}

at::Tensor halves(const at::Tensor& like) {
  return at::arange(2, like.options().dtype(at::kLong)).view({2, 1});
}

} // namespace millrace::training
