// Loops over single rows on a CPU: attention to keys and values in blocks, and products with bf16 matrices.

#include <cmath>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "millrace-workers/src/policy/decoder/kernels/kernels.h"

namespace millrace::kernels {

namespace {

constexpr std::int64_t kLanes = 16;

inline float widen(float x) {
  return x;
}

inline float widen(c10::BFloat16 x) {
  return static_cast<float>(x);
}

// What one query group sees: `heads` rows of q, `width` numbers each, one key head.
template <typename T>
struct Group {
  const T* q;
  const T* keys;
  const T* values;
  const std::int64_t* table;
  std::int64_t length, block, stride, heads, width;
  float scale;
  T* out;
};

// Sums are kept in kLanes parts, which the compiler may then hold in vectors without reordering a sum itself.
template <typename T>
inline __attribute__((always_inline)) float dot(const float* a, const T* b, std::int64_t width) {
  float part[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    for (std::int64_t j = 0; j < kLanes; ++j) {
      part[j] += a[i + j] * widen(b[i + j]);
    }
  }
  float sum = 0;
  for (; i < width; ++i) {
    sum += a[i] * widen(b[i]);
  }
  for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::int64_t j = 0; j < half; ++j) {
      part[j] += part[j + half];
    }
  }
  return sum + part[0];
}

template <typename T>
inline __attribute__((always_inline)) void attend(const Group<T>& g, float* scores, float* q, float* sums) {
  for (std::int64_t i = 0; i < g.heads * g.width; ++i) {
    q[i] = widen(g.q[i]) * g.scale;
    sums[i] = 0;
  }
  for (std::int64_t p = 0; p < g.length; ++p) {
    const T* key = g.keys + (g.table[p / g.block] * g.block + p % g.block) * g.stride;
    for (std::int64_t h = 0; h < g.heads; ++h) {
      scores[h * g.length + p] = dot(q + h * g.width, key, g.width);
    }
  }
  for (std::int64_t h = 0; h < g.heads; ++h) {
    float* row = scores + h * g.length;
    float most = row[0], total = 0;
    for (std::int64_t p = 1; p < g.length; ++p) {
      most = row[p] > most ? row[p] : most;
    }
    for (std::int64_t p = 0; p < g.length; ++p) {
      row[p] = std::exp(row[p] - most);
      total += row[p];
    }
    for (std::int64_t p = 0; p < g.length; ++p) {
      row[p] /= total;
    }
  }
  for (std::int64_t p = 0; p < g.length; ++p) {
    const T* value = g.values + (g.table[p / g.block] * g.block + p % g.block) * g.stride;
    for (std::int64_t h = 0; h < g.heads; ++h) {
      const float weight = scores[h * g.length + p];
      float* sum = sums + h * g.width;
      for (std::int64_t i = 0; i < g.width; ++i) {
        sum[i] += weight * widen(value[i]);
      }
    }
  }
  for (std::int64_t i = 0; i < g.heads * g.width; ++i) {
    g.out[i] = static_cast<T>(sums[i]);
  }
}

#if defined(__x86_64__)
bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has;
}

// The same loops for processors of the last decade. Which ones they run on is seen at run time.
template <typename T>
__attribute__((target("avx2,fma"))) void attend_avx2(const Group<T>& g, float* scores, float* q, float* sums) {
  attend(g, scores, q, sums);
}
#endif

template <typename T>
void attend_any(const Group<T>& g, float* scores, float* q, float* sums) {
#if defined(__x86_64__)
  if (has_avx2()) {
    return attend_avx2(g, scores, q, sums);
  }
#endif
  attend(g, scores, q, sums);
}

template <typename T>
void attend_all(
    const at::Tensor& q,
    const at::Tensor& keys,
    const at::Tensor& values,
    const at::Tensor& tables,
    const at::Tensor& lengths,
    std::int64_t block,
    std::int64_t heads,
    const at::Tensor& out) {
  const auto rows = q.size(0), width = q.size(1) / heads, stride = keys.size(1);
  const auto groups = stride / width, each = heads / groups;
  const auto* table = tables.const_data_ptr<std::int64_t>();
  const auto* length = lengths.const_data_ptr<std::int64_t>();
  const auto longest = tables.size(1) * block;
  at::parallel_for(0, rows * groups, 1, [&](std::int64_t from, std::int64_t to) {
    std::vector<float> scores(each * longest), scaled(each * width), sums(each * width);
    for (auto index = from; index < to; ++index) {
      const auto row = index / groups, group = index % groups;
      const auto at = row * q.size(1) + group * each * width;
      Group<T> g{
          q.const_data_ptr<T>() + at,
          keys.const_data_ptr<T>() + group * width,
          values.const_data_ptr<T>() + group * width,
          table + row * tables.size(1),
          length[row],
          block,
          stride,
          each,
          width,
          1.0f / std::sqrt(static_cast<float>(width)),
          out.mutable_data_ptr<T>() + at};
      attend_any(g, scores.data(), scaled.data(), sums.data());
    }
  });
}

// A product of a few rows with a matrix of bf16, `columns` rows of `width` numbers.
struct Product {
  const float* x;
  const c10::BFloat16* weight;
  std::int64_t rows, width, columns;
  c10::BFloat16* out;
};

// Its columns `from` to `to`.
inline __attribute__((always_inline)) void multiply(const Product& p, std::int64_t from, std::int64_t to) {
  for (auto column = from; column < to; ++column) {
    for (std::int64_t row = 0; row < p.rows; ++row) {
      p.out[row * p.columns + column] = dot(p.x + row * p.width, p.weight + column * p.width, p.width);
    }
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void multiply_avx2(const Product& p, std::int64_t from, std::int64_t to) {
  multiply(p, from, to);
}
#endif

void multiply_any(const Product& p, std::int64_t from, std::int64_t to) {
#if defined(__x86_64__)
  if (has_avx2()) {
    return multiply_avx2(p, from, to);
  }
#endif
  multiply(p, from, to);
}

} // namespace

void attend_rows(
    const at::Tensor* q,
    const at::Tensor* keys,
    const at::Tensor* values,
    const at::Tensor* tables,
    const at::Tensor* lengths,
    std::int64_t block,
    std::int64_t heads,
    const at::Tensor* out) {
  for (const auto* tensor : {q, keys, values, tables, out}) {
    TORCH_CHECK(tensor->dim() == 2 && tensor->is_contiguous() && tensor->device().is_cpu(), "not a matrix");
  }
  TORCH_CHECK(lengths->is_contiguous() && lengths->numel() == q->size(0) && tables->size(0) == q->size(0));
  TORCH_CHECK(heads > 0 && q->size(1) % heads == 0 && keys->size(1) % (q->size(1) / heads) == 0);
  TORCH_CHECK(heads % (keys->size(1) / (q->size(1) / heads)) == 0 && keys->sizes() == values->sizes());
  TORCH_CHECK(q->scalar_type() == keys->scalar_type() && q->scalar_type() == values->scalar_type());
  if (q->scalar_type() == at::kFloat) {
    attend_all<float>(*q, *keys, *values, *tables, *lengths, block, heads, *out);
  } else {
    attend_all<c10::BFloat16>(*q, *keys, *values, *tables, *lengths, block, heads, *out);
  }
}

void multiply_rows(const at::Tensor* x, const at::Tensor* weight, const at::Tensor* out) {
  for (const auto* tensor : {x, weight, out}) {
    TORCH_CHECK(tensor->dim() == 2 && tensor->is_contiguous() && tensor->scalar_type() == at::kBFloat16);
  }
  TORCH_CHECK(x->size(1) == weight->size(1) && out->size(0) == x->size(0) && out->size(1) == weight->size(0));
  const auto wide = x->to(at::kFloat);
  const Product product{
      wide.const_data_ptr<float>(),
      weight->const_data_ptr<c10::BFloat16>(),
      x->size(0),
      x->size(1),
      weight->size(0),
      out->mutable_data_ptr<c10::BFloat16>()};
  at::parallel_for(0, product.columns, 64, [&](std::int64_t from, std::int64_t to) {
    multiply_any(product, from, to);
  });
}

} // namespace millrace::kernels
