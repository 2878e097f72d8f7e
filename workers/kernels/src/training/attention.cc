// Attention of sequences that lie one after another: libtorch's flash attention of variable lengths.

#include <ATen/ATen.h>

#include "millrace-kernels/src/training/training.h"

namespace millrace::training {

namespace {

// The same on a processor, for tests: one sequence after another.
at::Tensor one_by_one(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& query_starts,
    const at::Tensor& key_starts) {
  std::vector<at::Tensor> attended;
  for (std::int64_t i = 0; i + 1 < query_starts.numel(); ++i) {
    const auto heads = [&](const at::Tensor& x, const at::Tensor& starts) {
      const auto from = starts[i].item<std::int64_t>(), count = starts[i + 1].item<std::int64_t>() - from;
      return x.narrow(0, from, count).transpose(0, 1).unsqueeze(0);
    };
    const auto queries = heads(q, query_starts), keys = heads(k, key_starts);
    const auto rows = queries.size(2), seen = keys.size(2);
    // The last query sees all keys.
    std::optional<at::Tensor> mask;
    if (rows != seen) {
      mask = at::ones({rows, seen}, at::kBool).tril(seen - rows);
    }
    attended.push_back(
        at::scaled_dot_product_attention(
            queries, keys, heads(v, key_starts), mask, 0.0, /*is_causal=*/!mask.has_value(), std::nullopt, true)
            .squeeze(0)
            .transpose(0, 1));
  }
  return at::cat(attended);
}

} // namespace

at::Tensor* attend_sequences(
    const at::Tensor* q,
    const at::Tensor* k,
    const at::Tensor* v,
    const at::Tensor* query_starts,
    const at::Tensor* key_starts,
    std::int64_t most_queries,
    std::int64_t most_keys) {
  for (const auto* x : {q, k, v}) {
    TORCH_CHECK(x->dim() == 3 && x->stride(2) == 1 && x->device() == q->device(), "not rows of heads");
  }
  TORCH_CHECK(k->sizes() == v->sizes() && q->size(1) % k->size(1) == 0);
  for (const auto* starts : {query_starts, key_starts}) {
    TORCH_CHECK(starts->scalar_type() == at::kInt && starts->dim() == 1 && starts->device() == q->device());
  }
  TORCH_CHECK(query_starts->numel() == key_starts->numel());
  if (!q->is_cuda()) {
    return new at::Tensor(one_by_one(*q, *k, *v, *query_starts, *key_starts));
  }
  // Autograd knows its backward.
  return new at::Tensor(std::get<0>(at::_flash_attention_forward(
      *q, *k, *v, *query_starts, *key_starts, most_queries, most_keys, 0.0, /*is_causal=*/true,
      /*return_debug_mask=*/false)));
}

} // namespace millrace::training
