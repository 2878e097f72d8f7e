// Gloo, and the code that it shares with NCCL.

#include <cstdlib>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "millrace-torch/src/gang/bridge/bridge.h"
#include "millrace-torch/src/gang/bridge/store.h"

#include "millrace-torch/src/gang/bridge.rs.h"

namespace millrace::gang {

Pending::Pending(c10::intrusive_ptr<c10d::Work> work, std::function<void()> then)
    : work_(std::move(work)), then_(std::move(then)) {}

bool Pending::done() const {
  return work_->isCompleted();
}

void Pending::finish() {
  work_->wait();
  if (then_) {
    then_();
  }
}

std::unique_ptr<Pending> Group::all_reduce(const at::Tensor* tensor) const {
  std::vector<at::Tensor> tensors{tensor->detach()};
  return std::make_unique<Pending>(backend().allreduce(tensors));
}

std::unique_ptr<Pending> Group::all_gather(const at::Tensor* output, const at::Tensor* input) const {
  auto to = output->detach();
  auto from = input->detach();
  return std::make_unique<Pending>(backend()._allgather_base(to, from));
}

std::unique_ptr<Pending> Group::broadcast(const at::Tensor* tensor, std::uint32_t root) const {
  std::vector<at::Tensor> tensors{tensor->detach()};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  return std::make_unique<Pending>(backend().broadcast(tensors, options));
}

namespace {

// c10d's flight recorder, one for a process, inserts new groups into a map without a lock (libtorch
// 2.11, FlightRecorderDetail.hpp), which breaks if two threads have groups. It is off unless the
// environment sets it. It is read when the first group is made, so it is set before any thread
// starts.
[[maybe_unused]] const int without_recorder = setenv("TORCH_FR_BUFFER_SIZE", "0", 0);

// NCCL's watchdog ends the process where a collective does not come back in time. Here that is a step
// that is void: who waits for it closes the connections, and the worker stays.
[[maybe_unused]] const int without_watchdog = setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 1) +
    setenv("TORCH_NCCL_ENABLE_MONITORING", "0", 1);

// Reaches the connections, to close them without waiting for collectives in flight.
class Closable final : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  void close() {
    for (const auto& context : contexts_) {
      context->closeConnections();
    }
  }
};

class GlooGroup final : public Group {
 public:
  explicit GlooGroup(c10::intrusive_ptr<Closable> inner) : inner_(std::move(inner)) {}

  void close() const override {
    inner_->close();
  }

  // c10d makes Gloo's reduce-scatter from an all-reduce, in a work that cannot be polled. So the
  // sum is made in place, and this member's part is copied out of it.
  std::unique_ptr<Pending> reduce_scatter(
      const at::Tensor& output, const at::Tensor& input, bool accumulate) const override {
    auto to = output.detach();
    auto from = input.detach();
    auto part = from.narrow(0, to.numel() * inner_->getRank(), to.numel());
    std::vector<at::Tensor> tensors{from};
    auto work = inner_->allreduce(tensors);
    return std::make_unique<Pending>(std::move(work), [to, part, accumulate] {
      if (accumulate) {
        to.add_(part);
      } else {
        to.copy_(part);
      }
    });
  }

 protected:
  c10d::Backend& backend() const override {
    return *inner_;
  }

 private:
  c10::intrusive_ptr<Closable> inner_;
};

} // namespace

std::shared_ptr<Group> gloo(
    rust::Box<RendezvousKeys> keys,
    rust::Str listen,
    bool interface,
    std::uint32_t rank,
    std::uint32_t world,
    std::uint64_t timeout_ms) {
  const std::chrono::milliseconds timeout(timeout_ms);
  auto store = c10::make_intrusive<RendezvousStore>(std::move(keys), timeout);
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  const std::string where(listen);
  options->devices.push_back(
      interface ? c10d::ProcessGroupGloo::createDeviceForInterface(where)
                : c10d::ProcessGroupGloo::createDeviceForHostname(where));
  auto inner = c10::make_intrusive<Closable>(
      std::move(store), static_cast<int>(rank), static_cast<int>(world), std::move(options));
  return std::make_shared<GlooGroup>(std::move(inner));
}

} // namespace millrace::gang
