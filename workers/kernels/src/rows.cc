// Loops over single rows on a CPU: attention to the KV cache in blocks, and products with bf16
// matrices.

#include <algorithm>
#include <limits>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "millrace-kernels/src/kernels.h"
#include "millrace-kernels/src/lanes.h"

namespace millrace::kernels {

namespace {

constexpr std::int64_t kLine = 64;

// Attention of rows to their blocks of the KV cache. A share is the query heads of one row that
// have the same key head: `each` of them, `width` numbers a head, `groups` shares a row.
template <typename T>
struct Attention {
  const T* q;
  std::int64_t q_stride;
  // Cells of `cell` numbers.
  T *keys, *values;
  std::int64_t cell;
  // The rows' own keys and values, and the cells that they are copied to first; null if they are in
  // the cache already.
  const T *own_keys, *own_values;
  std::int64_t own_key_stride, own_value_stride;
  const std::int64_t* cells;
  // Blocks of each row, `table` of them, and the number of positions that it attends to.
  const std::int64_t* tables;
  std::int64_t table;
  const std::int64_t* lengths;
  std::int64_t block;
  std::int64_t groups, each, width;
  T* out;

  // Scratch memory of a share.
  struct Scratch {
    std::vector<float> scores, q, sums, wide;
  };

  // A share: its row, its key head, and the number of positions that it attends to.
  struct Share {
    std::int64_t row, group, length, padded;
  };

  const T* block_of(const T* cached, const Share& share, std::int64_t index) const {
    return cached + tables[share.row * table + index] * block * cell + share.group * width;
  }

  // The next block is prefetched while a block is computed.
  MILLRACE_INLINE void fetch(const T* cached, const Share& share, std::int64_t index) const {
    if (index * block >= share.length) {
      return;
    }
    const auto* next = reinterpret_cast<const char*>(block_of(cached, share, index));
    const std::int64_t bytes = width * sizeof(T), apart = cell * sizeof(T);
    for (std::int64_t p = 0; p < block; ++p) {
      for (std::int64_t at = 0; at < bytes; at += kLine) {
        __builtin_prefetch(next + p * apart + at);
      }
    }
  }

  // A block's numbers as floats, and how far apart its positions are.
  template <int W>
  MILLRACE_INLINE std::pair<const float*, std::int64_t> wide(const T* at, Scratch& scratch) const {
    if constexpr (std::is_same_v<T, float>) {
      return {at, cell};
    } else {
      for (std::int64_t p = 0; p < block; ++p) {
        const T* from = at + p * cell;
        float* to = scratch.wide.data() + p * width;
        std::int64_t i = 0;
        for (; i + W <= width; i += W) {
          store<W>(to + i, load<W>(from + i));
        }
        for (; i < width; ++i) {
          to[i] = widen(from[i]);
        }
      }
      return {scratch.wide.data(), width};
    }
  }

  // Products of one query head with W keys.
  template <int W>
  MILLRACE_INLINE void score(const float* query, const float* key, std::int64_t apart, float* scores) const {
    Floats<W> part[W] = {};
    std::int64_t i = 0;
    for (; i + W <= width; i += W) {
      const auto x = load<W>(query + i);
#pragma GCC unroll 16
      for (int p = 0; p < W; ++p) {
        part[p] += x * load<W>(key + p * apart + i);
      }
    }
    store<W>(scores, sums<W>(part));
    for (; i < width; ++i) {
      for (int p = 0; p < W; ++p) {
        scores[p] += query[i] * key[p * apart + i];
      }
    }
  }

  // Turns scores into weights and returns their sum.
  template <int W>
  MILLRACE_INLINE float weigh(float* scores, const Share& share) const {
    std::fill(scores + share.length, scores + share.padded, -std::numeric_limits<float>::infinity());
    auto most = load<W>(scores);
    for (std::int64_t p = W; p < share.padded; p += W) {
      const auto x = load<W>(scores + p);
      most = x > most ? x : most;
    }
    float largest = most[0];
    for (int i = 1; i < W; ++i) {
      largest = std::max(largest, most[i]);
    }
    // A masked position weighs 1e-38, which adds nothing to the largest weight, 1.
    Floats<W> total = {};
    for (std::int64_t p = 0; p < share.padded; p += W) {
      const auto weights = exp<W>(load<W>(scores + p) - largest);
      store<W>(scores + p, weights);
      total += weights;
    }
    return sum<W>(total);
  }

  // Adds `count` values, each times its weight, to N vectors of a head's sums.
  template <int W, int N>
  MILLRACE_INLINE void add(
      float* to, const float* weights, const float* value, std::int64_t apart, std::int64_t count) const {
    Floats<W> part[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      part[n] = load<W>(to + n * W);
    }
    for (std::int64_t p = 0; p < count; ++p) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        part[n] += weights[p] * load<W>(value + p * apart + n * W);
      }
    }
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      store<W>(to + n * W, part[n]);
    }
  }

  template <int W>
  MILLRACE_INLINE void add_block(
      float* to, const float* weights, const float* value, std::int64_t apart, std::int64_t count) const {
    std::int64_t i = 0;
    for (; i + 4 * W <= width; i += 4 * W) {
      add<W, 4>(to + i, weights, value + i, apart, count);
    }
    for (; i + W <= width; i += W) {
      add<W, 1>(to + i, weights, value + i, apart, count);
    }
    for (; i < width; ++i) {
      for (std::int64_t p = 0; p < count; ++p) {
        to[i] += weights[p] * value[p * apart + i];
      }
    }
  }

  MILLRACE_INLINE void keep_own(const Share& share) const {
    const auto at = share.group * width, to = cells[share.row] * cell + at;
    std::copy_n(own_keys + share.row * own_key_stride + at, width, keys + to);
    std::copy_n(own_values + share.row * own_value_stride + at, width, values + to);
  }

  template <int W>
  MILLRACE_INLINE void attend(const Share& share, Scratch& scratch) const {
    if (cells != nullptr) {
      keep_own(share);
    }
    const float scale = 1.0f / std::sqrt(static_cast<float>(width));
    const auto numbers = each * width;
    const T* query = q + share.row * q_stride + share.group * numbers;
    for (std::int64_t i = 0; i < numbers; ++i) {
      scratch.q[i] = widen(query[i]) * scale;
      scratch.sums[i] = 0;
    }
    float* scores = scratch.scores.data();
    const auto blocks = share.padded / block;
    for (std::int64_t index = 0; index < blocks; ++index) {
      fetch(keys, share, index + 1);
      const auto [key, apart] = wide<W>(block_of(keys, share, index), scratch);
      for (std::int64_t h = 0; h < each; ++h) {
        for (std::int64_t p = 0; p < block; p += W) {
          const auto at = h * share.padded + index * block + p;
          score<W>(scratch.q.data() + h * width, key + p * apart, apart, scores + at);
        }
      }
    }
    fetch(values, share, 0);
    float totals[kMostHeads];
    for (std::int64_t h = 0; h < each; ++h) {
      totals[h] = weigh<W>(scores + h * share.padded, share);
    }
    for (std::int64_t index = 0; index < blocks; ++index) {
      fetch(values, share, index + 1);
      const auto [value, apart] = wide<W>(block_of(values, share, index), scratch);
      const auto count = std::min(block, share.length - index * block);
      for (std::int64_t h = 0; h < each; ++h) {
        const float* weights = scores + h * share.padded + index * block;
        add_block<W>(scratch.sums.data() + h * width, weights, value, apart, count);
      }
    }
    T* result = out + (share.row * groups + share.group) * numbers;
    for (std::int64_t h = 0; h < each; ++h) {
      for (std::int64_t i = 0; i < width; ++i) {
        result[h * width + i] = static_cast<T>(scratch.sums[h * width + i] / totals[h]);
      }
    }
  }

  template <int W>
  MILLRACE_INLINE void run(std::int64_t from, std::int64_t to) const {
    Scratch scratch;
    scratch.scores.resize(each * table * block);
    scratch.q.resize(each * width);
    scratch.sums.resize(each * width);
    scratch.wide.resize(std::is_same_v<T, float> ? 0 : block * width);
    for (auto index = from; index < to; ++index) {
      const auto row = index / groups, length = lengths[row];
      attend<W>({row, index % groups, length, (length + block - 1) / block * block}, scratch);
    }
  }

  // Query heads of one key head.
  static constexpr std::int64_t kMostHeads = 128;
};

// A product of a few rows with a matrix of bf16, `columns` rows of `width` numbers.
struct Product {
  const float* x;
  const c10::BFloat16* weight;
  std::int64_t rows, width, columns;
  c10::BFloat16* out;

  template <int W>
  MILLRACE_INLINE float dot(const float* a, const c10::BFloat16* b) const {
    Floats<W> part[4] = {};
    std::int64_t i = 0;
    for (; i + 4 * W <= width; i += 4 * W) {
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) {
        part[n] += load<W>(a + i + n * W) * load<W>(b + i + n * W);
      }
    }
    float rest = 0;
    for (; i < width; ++i) {
      rest += a[i] * widen(b[i]);
    }
    return rest + sum<W>((part[0] + part[1]) + (part[2] + part[3]));
  }

  template <int W>
  MILLRACE_INLINE void run(std::int64_t from, std::int64_t to) const {
    for (auto column = from; column < to; ++column) {
      for (std::int64_t row = 0; row < rows; ++row) {
        out[row * columns + column] = dot<W>(x + row * width, weight + column * width);
      }
    }
  }
};

// Checks that all blocks and cells lie in the cache, because the loop does not. One pass over the
// block numbers.
void check_pages(
    const at::Tensor* cells,
    const at::Tensor& tables,
    const at::Tensor& lengths,
    std::int64_t block,
    std::int64_t positions) {
  const auto rows = tables.size(0), width = tables.size(1), blocks = positions / block;
  const auto* table = tables.const_data_ptr<std::int64_t>();
  const auto* length = lengths.const_data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < rows; ++row) {
    TORCH_CHECK(
        length[row] > 0 && length[row] <= width * block, "row ", row, " sees positions=", length[row], " of ", width * block);
    for (std::int64_t i = 0; i * block < length[row]; ++i) {
      const auto at = table[row * width + i];
      TORCH_CHECK(at >= 0 && at < blocks, "row ", row, " sees block ", at, " of ", blocks);
    }
  }
  if (cells == nullptr) {
    return;
  }
  std::vector<std::int64_t> to(cells->const_data_ptr<std::int64_t>(), cells->const_data_ptr<std::int64_t>() + rows);
  std::sort(to.begin(), to.end());
  TORCH_CHECK(to.empty() || (to.front() >= 0 && to.back() < positions), "a row writes outside of positions=", positions);
  TORCH_CHECK(std::adjacent_find(to.begin(), to.end()) == to.end(), "two rows write to one position");
}

} // namespace

void attend_rows(
    const at::Tensor* q,
    const at::Tensor* own_keys,
    const at::Tensor* own_values,
    const at::Tensor* cells,
    const at::Tensor* keys,
    const at::Tensor* values,
    const at::Tensor* tables,
    const at::Tensor* lengths,
    std::int64_t block,
    std::int64_t heads,
    const at::Tensor* out) {
  const auto rows = q->size(0);
  check_rows(*q, rows, q->size(1));
  TORCH_CHECK(heads > 0 && q->size(1) % heads == 0 && keys->size(1) % (q->size(1) / heads) == 0);
  const auto width = q->size(1) / heads, cell = keys->size(1), groups = cell / width;
  TORCH_CHECK(heads % groups == 0 && heads / groups <= Attention<float>::kMostHeads);
  TORCH_CHECK(block > 0 && block % 16 == 0, "block=", block, " must be a multiple of 16 above 0");
  for (const auto* cached : {keys, values}) {
    check_rows(*cached, keys->size(0), cell);
    TORCH_CHECK(cached->is_contiguous() && cached->scalar_type() == q->scalar_type());
  }
  if (cells != nullptr) {
    for (const auto* own : {own_keys, own_values}) {
      check_rows(*own, rows, cell);
      TORCH_CHECK(own->scalar_type() == q->scalar_type());
    }
    TORCH_CHECK(cells->is_contiguous() && cells->numel() == rows);
  }
  check_rows(*tables, rows, tables->size(1));
  TORCH_CHECK(tables->is_contiguous() && lengths->is_contiguous() && lengths->numel() == rows);
  check_pages(cells, *tables, *lengths, block, keys->size(0));
  check_rows(*out, rows, q->size(1));
  TORCH_CHECK(out->is_contiguous() && out->scalar_type() == q->scalar_type());
  of_kind(*q, [&](auto kind) {
    using T = decltype(kind);
    const auto own = [&](const at::Tensor* one) { return cells ? one->const_data_ptr<T>() : nullptr; };
    const Attention<T> loop{
        q->const_data_ptr<T>(),
        q->stride(0),
        keys->mutable_data_ptr<T>(),
        values->mutable_data_ptr<T>(),
        cell,
        own(own_keys),
        own(own_values),
        cells ? own_keys->stride(0) : 0,
        cells ? own_values->stride(0) : 0,
        cells ? cells->const_data_ptr<std::int64_t>() : nullptr,
        tables->const_data_ptr<std::int64_t>(),
        tables->size(1),
        lengths->const_data_ptr<std::int64_t>(),
        block,
        groups,
        heads / groups,
        width,
        out->mutable_data_ptr<T>()};
    at::parallel_for(
        0, rows * groups, 1, [&](std::int64_t from, std::int64_t to) { run_best(loop, from, to); });
  });
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
  at::parallel_for(
      0, product.columns, 64, [&](std::int64_t from, std::int64_t to) { run_best(product, from, to); });
}

} // namespace millrace::kernels
