// Kernels on a GPU: compiled at run time for it by NVRTC, which torch's wheel brings, so that no build needs nvcc; and
// forwards that are captured as CUDA graphs.

#include <stdexcept>

#include <ATen/Context.h>

#include "millrace-kernels/src/cuda/launch.h"

#ifdef MILLRACE_CUDA

#include <dlfcn.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda.h>
#include <nvrtc.h>

namespace millrace::cuda {

namespace {

std::string& source() {
  static std::string text;
  return text;
}

// The folder of the CUDA runtime that libtorch loaded, with a slash; empty if that is not known.
std::string runtime_folder() {
  Dl_info runtime;
  void* known = dlsym(RTLD_DEFAULT, "cudaGetDeviceCount");
  if (known == nullptr || dladdr(known, &runtime) == 0) {
    return "";
  }
  const std::string path = runtime.dli_fname;
  return path.substr(0, path.rfind('/') + 1);
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

// NVRTC, which finds its own other half by name only: in the wheel nothing leads there, so it is loaded before.
void* open_compiler() {
  for (const auto& found : std::filesystem::directory_iterator(runtime_folder().empty() ? "." : runtime_folder())) {
    const auto name = found.path().filename().string();
    if (name.rfind("libnvrtc-builtins.so", 0) == 0) {
      dlopen(found.path().c_str(), RTLD_NOW | RTLD_GLOBAL);
    }
  }
  return open("libnvrtc.so." + std::to_string(CUDA_VERSION / 1000));
}

template <typename Function>
Function* symbol(void* library, const char* name) {
  void* found = dlsym(library, name);
  TORCH_CHECK(found != nullptr, "no ", name, " in its library");
  return reinterpret_cast<Function*>(found);
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

std::size_t free_bytes() {
  const auto device = c10::cuda::current_device();
  // By name: the runtime is a library that libtorch loads, not one that this is linked with.
  static auto* ask = symbol<cudaError_t(std::size_t*, std::size_t*)>(RTLD_DEFAULT, "cudaMemGetInfo");
  std::size_t free = 0, total = 0;
  TORCH_CHECK(ask(&free, &total) == cudaSuccess, "the GPU's free memory is not known");
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device);
  const auto kept = stats.reserved_bytes[0].current - stats.allocated_bytes[0].current;
  return std::min<std::size_t>(total, free + std::max<std::int64_t>(kept, 0));
}

void use_device(std::size_t number) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(number));
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

// The allocator keeps freed memory by stream, and libtorch hands out 32 streams in turn: with a new one for each reading
// and each capture, memory would be kept for nobody, and a reading would meet a capture. There is one for each.
static const c10::cuda::CUDAStream& reading_stream() {
  static const c10::cuda::CUDAStream one = c10::cuda::getStreamFromPool();
  return one;
}
static const c10::cuda::CUDAStream& capture_stream() {
  static const c10::cuda::CUDAStream one = c10::cuda::getStreamFromPool();
  return one;
}

struct OwnStream::Inside {
  c10::cuda::CUDAStream before = c10::cuda::getCurrentCUDAStream();
};

OwnStream::OwnStream() : inside(std::make_unique<Inside>()) {
  c10::cuda::setCurrentCUDAStream(reading_stream());
}
OwnStream::~OwnStream() {
  c10::cuda::setCurrentCUDAStream(inside->before);
}

void wait() {
  static auto* synchronize = symbol<decltype(cudaStreamSynchronize)>(RTLD_DEFAULT, "cudaStreamSynchronize");
  TORCH_CHECK(synchronize(c10::cuda::getCurrentCUDAStream()) == cudaSuccess, "the GPU failed");
}

struct Graphs::Inside {
  c10::cuda::CUDAStream stream = capture_stream();
  c10::cuda::CUDAStream before = c10::cuda::getCurrentCUDAStream();
  at::cuda::MempoolId_t pool = at::cuda::graph_pool_handle();
  std::vector<std::unique_ptr<at::cuda::CUDAGraph>> graphs;
  bool inside_stream = false, capturing = false;
  // Where uploads wait; the copy of one is over before the next: each step ends with a download.
  at::Tensor pinned;

  // libtorch ends a failed capture before it stops taking memory for it, by a filter that points into the graph.
  void forget_pool() noexcept {
    const auto device = stream.device_index();
    try {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool);
      c10::cuda::CUDACachingAllocator::releasePool(device, pool);
    } catch (...) {
    }
    try {
      auto* host = at::getHostAllocator(at::kCUDA);
      host->end_allocate_to_pool(pool);
      host->release_pool(pool);
    } catch (...) {
    }
    try {
      pool = at::cuda::graph_pool_handle();
    } catch (...) {
    }
  }

  void leave() {
    inside_stream = capturing = false;
    c10::cuda::setCurrentCUDAStream(before);
  }
};

Graphs::Graphs() : inside(std::make_unique<Inside>()) {}
Graphs::~Graphs() = default;

void Graphs::enter() {
  c10::cuda::device_synchronize();
  inside->before = c10::cuda::getCurrentCUDAStream();
  inside->inside_stream = true;
  c10::cuda::setCurrentCUDAStream(inside->stream);
}

void Graphs::begin() {
  c10::cuda::device_synchronize();
  // During a capture the allocator gives back nothing of what it keeps.
  c10::cuda::CUDACachingAllocator::emptyCache();
  inside->graphs.push_back(std::make_unique<at::cuda::CUDAGraph>());
  inside->capturing = true;
  // Other threads may go on using the device.
  inside->graphs.back()->capture_begin(inside->pool, cudaStreamCaptureModeThreadLocal);
}

std::size_t Graphs::end() {
  inside->graphs.back()->capture_end();
  inside->leave();
  return inside->graphs.size() - 1;
}

void Graphs::cancel() noexcept {
  if (inside->capturing) {
    try {
      inside->graphs.back()->capture_end();
    } catch (...) {
      inside->forget_pool();
    }
    inside->graphs.pop_back();
  }
  if (inside->inside_stream) {
    inside->leave();
  }
}

void Graphs::replay(std::size_t which) const {
  inside->graphs.at(which)->replay();
}

void Graphs::upload(const at::Tensor* to, rust::Slice<const std::int32_t> words) {
  const auto count = static_cast<std::int64_t>(words.size());
  TORCH_CHECK(to->is_contiguous() && to->scalar_type() == at::kInt && to->numel() >= count);
  if (!inside->pinned.defined() || inside->pinned.numel() < count) {
    inside->pinned = at::empty({2 * count}, at::TensorOptions().dtype(at::kInt).pinned_memory(true));
  }
  std::memcpy(inside->pinned.mutable_data_ptr(), words.data(), words.size() * sizeof(std::int32_t));
  to->view({-1}).narrow(0, 0, count).copy_(inside->pinned.narrow(0, 0, count), /*non_blocking=*/true);
}

} // namespace millrace::cuda

#else

// A build without CUDA's headers launches nothing on a device.
namespace millrace::cuda {

[[noreturn]] static void refuse() {
  throw std::runtime_error("this build has no kernels for CUDA: its libtorch came without CUDA's headers");
}

struct OwnStream::Inside {};
OwnStream::OwnStream() { refuse(); }
OwnStream::~OwnStream() = default;
void wait() { refuse(); }

struct Graphs::Inside {};
Graphs::Graphs() = default;
Graphs::~Graphs() = default;

void set_source(rust::Str, rust::Str) {}
bool has_device() { return false; }
std::size_t free_bytes() { return 0; }
void use_device(std::size_t) {}
void launch_on_device(const Launch&, void*) { refuse(); }
void Graphs::enter() { refuse(); }
void Graphs::begin() { refuse(); }
std::size_t Graphs::end() { refuse(); }
void Graphs::cancel() noexcept {}
void Graphs::replay(std::size_t) const { refuse(); }
void Graphs::upload(const at::Tensor*, rust::Slice<const std::int32_t>) { refuse(); }

} // namespace millrace::cuda

#endif

namespace millrace::cuda {

void allow_tf32(bool allowed) {
  at::globalContext().setAllowTF32CuBLAS(allowed);
}

std::unique_ptr<OwnStream> own_stream() {
  return std::make_unique<OwnStream>();
}

std::unique_ptr<Graphs> make_graphs() {
  return std::make_unique<Graphs>();
}

} // namespace millrace::cuda
