// A trace by libtorch's own profiler, which is Kineto.

#include <set>
#include <string>

#include <ATen/Context.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "millrace-kernels/src/trace/trace.h"

namespace millrace::trace {

namespace profiler = torch::profiler::impl;

void begin() {
  const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO);
  std::set<profiler::ActivityType> activities{profiler::ActivityType::CPU};
  if (at::hasCUDA()) {
    activities.insert(profiler::ActivityType::CUDA);
  }
  torch::autograd::profiler::prepareProfiler(config, activities);
  torch::autograd::profiler::enableProfiler(config, activities);
}

void end(rust::Str path) {
  torch::autograd::profiler::disableProfiler()->save(std::string(path));
}

void cancel() noexcept {
  try {
    torch::autograd::profiler::disableProfiler();
  } catch (...) {
  }
}

} // namespace millrace::trace
