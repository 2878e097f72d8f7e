// What a process has of a GPU besides kernels.

#include "millrace-kernels/src/cuda/graphs.h"

#include <ATen/Context.h>

#ifdef MILLRACE_CUDA

#include <algorithm>
#include <cstring>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include "millrace-kernels/src/cuda/runtime.h"

namespace millrace::cuda {

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

OwnStream::OwnStream() : inside(at::cuda::is_available() ? std::make_unique<Inside>() : nullptr) {
  if (inside != nullptr) {
    c10::cuda::setCurrentCUDAStream(reading_stream());
  }
}
OwnStream::~OwnStream() {
  if (inside != nullptr) {
    c10::cuda::setCurrentCUDAStream(inside->before);
  }
}

void wait() {
  if (!at::cuda::is_available()) {
    return;
  }
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

#include <stdexcept>

// A build without CUDA's headers captures nothing, and has one stream.
namespace millrace::cuda {

[[noreturn]] static void refuse() {
  throw std::runtime_error("this build captures nothing: its libtorch came without CUDA's headers");
}

std::size_t free_bytes() { return 0; }
void use_device(std::size_t) {}

struct OwnStream::Inside {};
OwnStream::OwnStream() = default;
OwnStream::~OwnStream() = default;
void wait() {}

struct Graphs::Inside {};
Graphs::Graphs() = default;
Graphs::~Graphs() = default;
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
