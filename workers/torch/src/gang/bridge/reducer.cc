// Reduces gradients while the backward pass still runs.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "millrace-torch/src/gang/bridge/bridge.h"

namespace millrace::gang {

void add_gradient_to(const at::Tensor* leaf, const at::Tensor* gradient) {
  leaf->mutable_grad() = gradient->detach().view_as(*leaf);
}

void drop_gradient(const at::Tensor* leaf) {
  leaf->mutable_grad().reset();
}

namespace {

struct Bucket {
  at::Tensor output;
  // That of a transient bucket is made when its first gradient comes, and its reduction takes it.
  at::Tensor input;
  // Elements of a transient bucket's input; 0 for the others.
  std::int64_t length = 0;
  // Elements of a transient bucket's leaves.
  std::int64_t filled = 0;
  std::uint32_t leaves = 0;
  std::uint32_t missing = 0;
  std::unique_ptr<Pending> pending;

  at::Tensor& made() {
    if (!input.defined()) {
      input = at::zeros({length}, output.options());
    }
    return input;
  }
};

} // namespace

// The backward pass runs on one thread at a time, and its caller waits for it: no lock is needed.
struct Reducer::State {
  std::shared_ptr<Group> group;
  std::vector<Bucket> buckets;
  std::size_t next = 0;
  bool accumulate = false;
  bool armed = false;
  std::exception_ptr failure;

  // Members start collectives in the same order, whichever bucket is full first.
  void start(bool all) {
    while (next < buckets.size() && (all || buckets[next].missing == 0)) {
      auto& bucket = buckets[next++];
      bucket.pending = group->reduce_scatter(bucket.output, bucket.made(), accumulate);
      if (bucket.length > 0) {
        bucket.input.reset();
      }
    }
  }

  // Moves the gradient of a leaf into its transient bucket.
  void take(const at::Tensor& leaf, std::size_t bucket, std::int64_t at) noexcept {
    if (failure) {
      return;
    }
    try {
      auto& gradient = leaf.mutable_grad();
      buckets[bucket].made().narrow(0, at, gradient.numel()).copy_(gradient.reshape({-1}));
      gradient.reset();
    } catch (...) {
      failure = std::current_exception();
    }
  }

  void filled(std::size_t bucket) noexcept {
    if (!armed || failure) {
      return;
    }
    // An exception must not pass through autograd, which would report it as one of the computation.
    try {
      TORCH_CHECK(buckets[bucket].missing > 0, "bucket ", bucket, " is filled more often than it has leaves");
      if (--buckets[bucket].missing != 0) {
        return;
      }
      start(false);
    } catch (...) {
      failure = std::current_exception();
    }
  }
};

namespace {

class Filled final : public torch::autograd::PostAccumulateGradHook {
 public:
  using Call = std::function<void(const at::Tensor&)>;

  explicit Filled(Call call) : call_(std::move(call)) {}

  void operator()(const torch::autograd::Variable& leaf) override {
    call_(leaf);
  }

 private:
  Call call_;
};

} // namespace

Reducer::Reducer(std::shared_ptr<Group> group, bool accumulate) : state_(std::make_shared<State>()) {
  state_->group = std::move(group);
  state_->accumulate = accumulate;
}

Reducer::~Reducer() {
  for (const auto& leaf : leaves_) {
    torch::autograd::impl::set_post_acc_grad_hooks(leaf, nullptr);
  }
}

void Reducer::add_bucket(const at::Tensor* output, const at::Tensor* input) {
  Bucket bucket;
  bucket.output = output->detach();
  bucket.input = input->detach();
  state_->buckets.push_back(std::move(bucket));
}

void Reducer::add_transient_bucket(const at::Tensor* output, std::int64_t length) {
  TORCH_CHECK(length > 0, "a transient bucket has elements");
  Bucket bucket;
  bucket.output = output->detach();
  bucket.length = length;
  state_->buckets.push_back(std::move(bucket));
}

void Reducer::add_leaf(const at::Tensor* leaf) {
  TORCH_CHECK(!state_->buckets.empty(), "a leaf lies in a bucket, and there is none");
  const auto index = state_->buckets.size() - 1;
  auto& bucket = state_->buckets[index];
  ++bucket.leaves;
  Filled::Call call;
  if (bucket.length > 0) {
    leaf->mutable_grad().reset();
    call = [state = state_, index, at = bucket.filled](const at::Tensor& leaf) {
      state->take(leaf, index, at);
      state->filled(index);
    };
    bucket.filled += leaf->numel();
  } else {
    call = [state = state_, index](const at::Tensor&) { state->filled(index); };
  }
  torch::autograd::impl::set_post_acc_grad_hooks(*leaf, std::make_unique<Filled>(std::move(call)));
  leaves_.push_back(*leaf);
}

void Reducer::add_leaf_by_hand() {
  TORCH_CHECK(!state_->buckets.empty(), "a leaf lies in a bucket, and there is none");
  TORCH_CHECK(state_->buckets.back().length == 0, "a gradient by hand lies in a bucket that stays");
  ++state_->buckets.back().leaves;
}

void Reducer::filled(std::uint32_t bucket) {
  TORCH_CHECK(bucket < state_->buckets.size(), "bucket ", bucket, " of ", state_->buckets.size());
  state_->filled(bucket);
}

void Reducer::arm() {
  for (auto& bucket : state_->buckets) {
    bucket.missing = bucket.leaves;
    bucket.pending.reset();
    if (bucket.length > 0) {
      bucket.input.reset();
    }
  }
  state_->next = 0;
  state_->failure = nullptr;
  state_->armed = true;
}

std::uint32_t Reducer::started() const {
  return static_cast<std::uint32_t>(state_->next);
}

void Reducer::start_rest() {
  state_->armed = false;
  if (state_->failure) {
    std::rethrow_exception(state_->failure);
  }
  state_->start(true);
}

std::unique_ptr<Pending> Reducer::take(std::uint32_t bucket) {
  TORCH_CHECK(bucket < state_->next && state_->buckets[bucket].pending, "bucket ", bucket, " is not under way");
  return std::move(state_->buckets[bucket].pending);
}

std::unique_ptr<Reducer> reducer(const std::shared_ptr<Group>& group, bool accumulate) {
  return std::make_unique<Reducer>(group, accumulate);
}

} // namespace millrace::gang
