// NCCL, for tensors on a GPU. Compiled with MILLRACE_NCCL where NCCL's and CUDA's headers are
// found.

#include "millrace-torch/src/gang/bridge/bridge.h"
#include "millrace-torch/src/gang/bridge/store.h"

#include "millrace-torch/src/gang/bridge.rs.h"

#ifdef MILLRACE_NCCL
#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

namespace millrace::gang {

#ifdef MILLRACE_NCCL

namespace {

class NcclGroup final : public Group {
 public:
  explicit NcclGroup(c10::intrusive_ptr<c10d::ProcessGroupNCCL> inner) : inner_(std::move(inner)) {}

  void close() const override {
    inner_->abort();
  }

  std::unique_ptr<Pending> reduce_scatter(
      const at::Tensor& output, const at::Tensor& input, bool accumulate) const override {
    auto to = output.detach();
    auto from = input.detach();
    if (!accumulate) {
      return std::make_unique<Pending>(inner_->_reduce_scatter_base(to, from));
    }
    auto part = at::empty_like(to);
    auto work = inner_->_reduce_scatter_base(part, from);
    // It runs after the collective on the stream of `finish`, so `from` must live until then.
    return std::make_unique<Pending>(std::move(work), [to, part, from] { to.add_(part); });
  }

 protected:
  c10d::Backend& backend() const override {
    return *inner_;
  }

 private:
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> inner_;
};

} // namespace

bool has_nccl() {
  return true;
}

std::shared_ptr<Group> nccl(
    rust::Box<RendezvousKeys> keys,
    std::uint32_t rank,
    std::uint32_t world,
    std::uint64_t timeout_ms,
    std::uint32_t device) {
  const std::chrono::milliseconds timeout(timeout_ms);
  auto store = c10::make_intrusive<RendezvousStore>(std::move(keys), timeout);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  auto inner = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      std::move(store), static_cast<int>(rank), static_cast<int>(world), std::move(options));
  // Otherwise the first collective would connect, on a thread that nobody can abandon: NCCL waits
  // without a timeout for a member that does not come.
  inner->eagerConnectSingleDevice(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device)));
  return std::make_shared<NcclGroup>(std::move(inner));
}

#else

bool has_nccl() {
  return false;
}

std::shared_ptr<Group> nccl(
    rust::Box<RendezvousKeys>, std::uint32_t, std::uint32_t, std::uint64_t, std::uint32_t) {
  throw std::runtime_error("this build lacks NCCL: its headers were not there");
}

#endif

} // namespace millrace::gang
