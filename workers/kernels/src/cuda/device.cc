// Kernels on a GPU: compiled at run time for it by NVRTC, which torch's wheel brings, so that no build needs nvcc.

#include <stdexcept>

#include "millrace-kernels/src/cuda/launch.h"
#include "millrace-kernels/src/cuda/runtime.h"

#ifdef MILLRACE_CUDA

#include <map>
#include <mutex>
#include <vector>

#include <ATen/cuda/CUDAContext.h>
#include <cuda.h>
#include <nvrtc.h>

namespace millrace::cuda {

namespace {

std::string& source() {
  static std::string text;
  return text;
}

// A library beside the CUDA runtime, or where the loader finds it.
void* open(const std::string& name) {
  for (const auto& path : {runtime_folder() + name, name}) {
    if (void* found = dlopen(path.c_str(), RTLD_NOW)) {
      return found;
    }
  }
  TORCH_CHECK(false, "failed to load ", name, ": ", dlerror());
}

void* open_compiler() {
  load_builtins();
  return open("libnvrtc.so." + std::to_string(CUDA_VERSION / 1000));
}

struct Driver {
  void* library = open("libcuda.so.1");
  decltype(cuModuleLoadData)* load = symbol<decltype(cuModuleLoadData)>(library, "cuModuleLoadData");
  decltype(cuModuleGetFunction)* function = symbol<decltype(cuModuleGetFunction)>(library, "cuModuleGetFunction");
  decltype(cuFuncSetAttribute)* set = symbol<decltype(cuFuncSetAttribute)>(library, "cuFuncSetAttribute");
  decltype(cuLaunchKernelEx)* launch = symbol<decltype(cuLaunchKernelEx)>(library, "cuLaunchKernelEx");
  decltype(cuGetErrorString)* error = symbol<decltype(cuGetErrorString)>(library, "cuGetErrorString");

  void check(CUresult result, const char* what) const {
    const char* why = nullptr;
    if (result != CUDA_SUCCESS) {
      error(result, &why);
      TORCH_CHECK(false, what, " failed: ", why == nullptr ? "unknown error" : why);
    }
  }
};

const Driver& driver() {
  static const Driver one;
  return one;
}

struct Compiler {
  void* library = open_compiler();
  decltype(nvrtcCreateProgram)* create = symbol<decltype(nvrtcCreateProgram)>(library, "nvrtcCreateProgram");
  decltype(nvrtcCompileProgram)* compile = symbol<decltype(nvrtcCompileProgram)>(library, "nvrtcCompileProgram");
  decltype(nvrtcGetCUBINSize)* size = symbol<decltype(nvrtcGetCUBINSize)>(library, "nvrtcGetCUBINSize");
  decltype(nvrtcGetCUBIN)* cubin = symbol<decltype(nvrtcGetCUBIN)>(library, "nvrtcGetCUBIN");
  decltype(nvrtcGetProgramLogSize)* log_size =
      symbol<decltype(nvrtcGetProgramLogSize)>(library, "nvrtcGetProgramLogSize");
  decltype(nvrtcGetProgramLog)* log = symbol<decltype(nvrtcGetProgramLog)>(library, "nvrtcGetProgramLog");
  decltype(nvrtcDestroyProgram)* destroy = symbol<decltype(nvrtcDestroyProgram)>(library, "nvrtcDestroyProgram");

  // Machine code of one instance of a kernel, as the function `run`.
  std::vector<char> build(const Launch& how, int major, int minor) const {
    const auto text = source() + "\nusing namespace millrace::cuda;\nextern \"C\" __global__ void __launch_bounds__(" +
        std::to_string(how.threads) + ") run(const __grid_constant__ " + how.argument + " a) { " + how.instance + "(a); }\n";
    nvrtcProgram program;
    TORCH_CHECK(create(&program, text.c_str(), "rows.cu", 0, nullptr, nullptr) == NVRTC_SUCCESS, "NVRTC failed");
    const auto arch = "--gpu-architecture=sm_" + std::to_string(major) + std::to_string(minor);
    const char* options[] = {arch.c_str(), "--std=c++17", "-default-device"};
    const auto result = compile(program, 3, options);
    std::size_t bytes = 0;
    if (result != NVRTC_SUCCESS) {
      log_size(program, &bytes);
      std::string why(bytes, '\0');
      log(program, why.data());
      destroy(&program);
      TORCH_CHECK(false, "failed to compile ", how.instance, ": ", why);
    }
    size(program, &bytes);
    std::vector<char> code(bytes);
    cubin(program, code.data());
    destroy(&program);
    return code;
  }
};

// The function of an instance on a device, compiled when it is first asked for.
CUfunction function_of(const Launch& how, int device, const cudaDeviceProp& properties) {
  static std::mutex lock;
  static std::map<std::pair<int, std::string>, CUfunction> known;
  const std::lock_guard guard(lock);
  auto& entry = known[{device, how.instance}];
  if (entry == nullptr) {
    CUfunction found;
    static const Compiler compiler;
    const auto code = compiler.build(how, properties.major, properties.minor);
    CUmodule module;
    driver().check(driver().load(&module, code.data()), "loading a kernel");
    driver().check(driver().function(&found, module, "run"), "finding a kernel");
    if (how.shared > 0) {
      // As much as any of its launches asks for.
      constexpr int kMost = 96 << 10;
      driver().check(driver().set(found, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kMost), "sizing shared memory");
    }
    // Known once it is whole.
    entry = found;
  }
  return entry;
}

} // namespace

void set_source(rust::Str arguments, rust::Str rows) {
  if (source().empty()) {
    source() = std::string(arguments) + std::string(rows);
  }
}

bool has_device() {
  return at::cuda::is_available();
}

void launch_on_device(const Launch& how, void* argument) {
  const auto* properties = at::cuda::getCurrentDeviceProperties();
  const auto function = function_of(how, c10::cuda::current_device(), *properties);
  CUlaunchAttribute early{};
  early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  early.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{};
  config.gridDimX = how.grid[0];
  config.gridDimY = how.grid[1];
  config.gridDimZ = how.grid[2];
  config.blockDimX = how.threads;
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned>(how.shared);
  config.hStream = at::cuda::getCurrentCUDAStream();
  config.attrs = &early;
  config.numAttrs = properties->major >= 9 ? 1 : 0;
  void* arguments[] = {argument};
  driver().check(driver().launch(&config, function, arguments, nullptr), how.instance.c_str());
}

} // namespace millrace::cuda

#else

// A build without CUDA's headers launches nothing on a device.
namespace millrace::cuda {

void set_source(rust::Str, rust::Str) {}
bool has_device() { return false; }
void launch_on_device(const Launch&, void*) {
  throw std::runtime_error("this build has no kernels for CUDA: its libtorch came without CUDA's headers");
}

} // namespace millrace::cuda

#endif
