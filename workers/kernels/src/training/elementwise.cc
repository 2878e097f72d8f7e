#include "millrace-kernels/src/training/elementwise.h"

#include <dlfcn.h>

#include <filesystem>

#include <c10/util/SmallVector.h>

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

// The run-time compiler opens its built-ins by name alone, which finds them only where they are loaded:
// they lie beside the CUDA runtime.
bool load_builtins() {
  Dl_info runtime;
  void* known = dlsym(RTLD_DEFAULT, "cudaGetDeviceCount");
  if (known == nullptr || dladdr(known, &runtime) == 0) {
    return false;
  }
  std::error_code none;
  const auto folder = std::filesystem::path(runtime.dli_fname).parent_path();
  for (const auto& file : std::filesystem::directory_iterator(folder, none)) {
    const auto path = file.path();
    const bool builtins = path.filename().string().rfind("libnvrtc-builtins.so", 0) == 0;
    if (builtins && dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) {
      return true;
    }
  }
  return false;
}

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
  // Where they are not found the compiler may know of others, or says itself what it lacks.
  static const bool loaded = load_builtins();
  static_cast<void>(loaded);
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
