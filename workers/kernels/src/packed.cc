// oneDNN's product with weights in its own layout. libtorch registers both operators for its
// compiler and gives them no C++ name, so the dispatcher calls them.

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "millrace-kernels/src/kernels.h"

namespace millrace::kernels {

namespace {

c10::OperatorHandle find(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

at::Tensor call(const c10::OperatorHandle& op, torch::jit::Stack stack) {
  op.callBoxed(stack);
  return std::move(stack.at(0)).toTensor();
}

} // namespace

bool has_bf16_products() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

at::Tensor* pack(const at::Tensor* weight, std::int64_t rows) {
  static const auto reorder = find("mkldnn::_reorder_linear_weight");
  at::NoGradGuard none;
  return new at::Tensor(call(reorder, {*weight, rows}));
}

at::Tensor* multiply(
    const at::Tensor* x, const at::Tensor* weight, const at::Tensor* bias, const at::Tensor* onto) {
  static const auto linear = find("mkldnn::_linear_pointwise");
  static const auto linear_onto = find("mkldnn::_linear_pointwise", "binary");
  at::NoGradGuard none;
  const auto added = bias == nullptr ? c10::IValue() : c10::IValue(*bias);
  if (onto != nullptr) {
    return new at::Tensor(call(linear_onto, {*x, *onto, *weight, added, "add"}));
  }
  c10::List<std::optional<at::Scalar>> scalars;
  return new at::Tensor(call(linear, {*x, *weight, added, "none", std::move(scalars), ""}));
}

} // namespace millrace::kernels
