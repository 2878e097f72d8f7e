// Sums and gradients over rows of logits, which stay in bf16: two passes read them, and what is between is
// a row's.

#include "millrace-kernels/src/training/elementwise.h"
#include "millrace-kernels/src/training/training.h"

namespace millrace::training {

namespace {

// Of sixteen logits: `Σ e^u` and `Σ u e^u` with `u = (logit - largest) / temperature`. `row` holds the
// row's largest and the inverse of the temperature. What is −∞ counts nothing.
MILLRACE_PASS(
    millrace_sums, 5, kWords, template <typename T> T millrace_sums(T a, T b, T c, T d, T row_word) {
      T four[4] = {a, b, c, d};
      auto row = millrace_word(row_word), out = row;
      float sum = 0.0f, weighted = 0.0f;
      for (int i = 0; i < 16; ++i) {
        float u = (millrace_wide(millrace_word(four[i / 4]).half[i % 4]) - row.single[0]) * row.single[1];
        float e = expf(u);
        sum += e;
        weighted += e > 0.0f ? e * u : 0.0f;
      }
      out.single[0] = sum;
      out.single[1] = weighted;
      return out.whole;
    })

// `p (a + b log p)` with `log p = logit / temperature - log_sum`. The row's words hold `log_sum` and `a`,
// then `b` and the inverse of the temperature.
MILLRACE_PASS(
    millrace_logits_gradient, 3, kWords,
    template <typename T> T millrace_logits_gradient(T word, T first_word, T second_word) {
      auto logits = millrace_word(word), first = millrace_word(first_word), second = millrace_word(second_word);
      auto out = logits;
      for (int i = 0; i < 4; ++i) {
        float log_p = millrace_wide(logits.half[i]) * second.single[1] - first.single[0];
        float p = expf(log_p);
        out.half[i] = millrace_half(p > 0.0f ? p * (first.single[1] + second.single[0] * log_p) : 0.0f);
      }
      return out.whole;
    })

void check(const at::Tensor& logits) {
  TORCH_CHECK(logits.dim() == 2 && logits.is_contiguous() && logits.scalar_type() == at::kBFloat16);
  TORCH_CHECK(logits.size(1) % 16 == 0, "columns=", logits.size(1), " are not a multiple of 16");
}

} // namespace

at::Tensor* exponential_sums(const at::Tensor* logits, const at::Tensor* largest, double inverse_temperature) {
  check(*logits);
  const auto rows = logits->size(0), columns = logits->size(1);
  TORCH_CHECK(largest->numel() == rows && largest->scalar_type() == at::kFloat);
  const auto row = at::stack({*largest, at::full_like(*largest, inverse_temperature)}, 1).view(at::kLong);
  const auto sixteen = words(*logits).view({rows, columns / 16, 4});
  const auto parts = compute(
      millrace_sums_pass(),
      {sixteen.select(2, 0), sixteen.select(2, 1), sixteen.select(2, 2), sixteen.select(2, 3), row});
  return new at::Tensor(parts.contiguous().view(at::kFloat).view({rows, columns / 16, 2}).sum(1));
}

at::Tensor* logits_gradient(const at::Tensor* logits, const at::Tensor* rows) {
  check(*logits);
  TORCH_CHECK(rows->dim() == 2 && rows->size(0) == logits->size(0) && rows->size(1) == 4);
  TORCH_CHECK(rows->is_contiguous() && rows->scalar_type() == at::kFloat);
  const auto pairs = words(*rows);
  const auto gradient = compute(
      millrace_logits_gradient_pass(), {words(*logits), pairs.narrow(1, 0, 1), pairs.narrow(1, 1, 1)});
  return new at::Tensor(gradient.view(at::kBFloat16));
}

} // namespace millrace::training
