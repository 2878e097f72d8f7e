// Collectives of c10d, and gradients that are reduced while the backward pass still runs.
// ../bridge.rs documents each call.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "rust/cxx.h"

namespace millrace::gang {

struct RendezvousKeys;

// A collective in flight. It keeps its tensors alive.
class Pending {
 public:
  // `then` is run by `finish`, once the work is done.
  Pending(c10::intrusive_ptr<c10d::Work> work, std::function<void()> then = {});
  bool done() const;
  void finish();

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  std::function<void()> then_;
};

// The members' connections.
class Group {
 public:
  virtual ~Group() = default;
  virtual void close() const = 0;
  std::unique_ptr<Pending> all_reduce(const at::Tensor* tensor) const;
  // With `accumulate` this member's part is added to `output`, else written to it.
  virtual std::unique_ptr<Pending> reduce_scatter(
      const at::Tensor& output, const at::Tensor& input, bool accumulate) const = 0;
  std::unique_ptr<Pending> all_gather(const at::Tensor* output, const at::Tensor* input) const;
  std::unique_ptr<Pending> broadcast(const at::Tensor* tensor, std::uint32_t root) const;

 protected:
  virtual c10d::Backend& backend() const = 0;
};

std::shared_ptr<Group> gloo(
    rust::Box<RendezvousKeys> keys,
    rust::Str listen,
    bool interface,
    std::uint32_t rank,
    std::uint32_t world,
    std::uint64_t timeout_ms);

bool has_nccl();

std::shared_ptr<Group> nccl(
    rust::Box<RendezvousKeys> keys,
    std::uint32_t rank,
    std::uint32_t world,
    std::uint64_t timeout_ms,
    std::uint32_t device);

// Makes the backward pass add the gradient of `leaf` to `gradient`.
void add_gradient_to(const at::Tensor* leaf, const at::Tensor* gradient);

// Takes the gradient of `leaf` away, and with it its memory.
void drop_gradient(const at::Tensor* leaf);

// Reduces buckets of gradients as the backward pass fills them.
class Reducer {
 public:
  Reducer(std::shared_ptr<Group> group, bool accumulate);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;
  ~Reducer();
  void add_bucket(const at::Tensor* output, const at::Tensor* input);
  void add_transient_bucket(const at::Tensor* output, std::int64_t length);
  void add_leaf(const at::Tensor* leaf);
  void add_leaf_by_hand();
  void filled(std::uint32_t bucket);
  void arm();
  std::uint32_t started() const;
  void start_rest();
  std::unique_ptr<Pending> take(std::uint32_t bucket);

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::vector<at::Tensor> leaves_;
};

std::unique_ptr<Reducer> reducer(const std::shared_ptr<Group>& group, bool accumulate);

} // namespace millrace::gang
