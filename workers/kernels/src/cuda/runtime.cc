#include "millrace-kernels/src/cuda/runtime.h"

#include <filesystem>

namespace millrace::cuda {

std::string runtime_folder() {
  Dl_info runtime;
  void* known = dlsym(RTLD_DEFAULT, "cudaGetDeviceCount");
  if (known == nullptr || dladdr(known, &runtime) == 0) {
    return "";
  }
  const std::string path = runtime.dli_fname;
  return path.substr(0, path.rfind('/') + 1);
}

namespace {

bool load_builtins_once() {
  std::error_code none;
  for (const auto& file : std::filesystem::directory_iterator(runtime_folder(), none)) {
    const auto path = file.path();
    const bool builtins = path.filename().string().rfind("libnvrtc-builtins.so", 0) == 0;
    if (builtins && dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) {
      return true;
    }
  }
  return false;
}

} // namespace

void load_builtins() {
  static const bool loaded = load_builtins_once();
  static_cast<void>(loaded);
}

} // namespace millrace::cuda
