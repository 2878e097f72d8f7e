// The operations of a decoder between its matrix products, each in one pass over rows on a CPU:
// RMSNorm, norms and rotary embeddings of heads, the gate.

#include <ATen/Parallel.h>

#include "millrace-kernels/src/kernels.h"
#include "millrace-kernels/src/lanes.h"

namespace millrace::kernels {

namespace {

// Below this many numbers, starting a thread costs more than it saves.
constexpr std::int64_t kGrain = 1 << 15;

std::int64_t rows_of_a_thread(std::int64_t width) {
  return std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, width));
}

template <typename T>
T* data(const at::Tensor& tensor) {
  return tensor.mutable_data_ptr<T>();
}

// out = weight * (x / sqrt(mean(x²) + epsilon)), of `width` numbers; out may be x. The part in
// brackets is rounded to T first, as in transformers.
template <int W, typename T>
MILLRACE_INLINE void normalise_one(const T* x, const T* weight, std::int64_t width, float epsilon, T* out) {
  Floats<W> part[2] = {};
  float total = 0;
  std::int64_t i = 0;
  for (; i + 2 * W <= width; i += 2 * W) {
    const auto a = load<W>(x + i), b = load<W>(x + i + W);
    part[0] += a * a;
    part[1] += b * b;
  }
  for (; i < width; ++i) {
    total += widen(x[i]) * widen(x[i]);
  }
  total += sum<W>(part[0] + part[1]);
  const float scale = 1.0f / std::sqrt(total / static_cast<float>(width) + epsilon);
  for (i = 0; i + W <= width; i += W) {
    store<W>(out + i, rounded<W, T>(load<W>(x + i) * scale) * load<W>(weight + i));
  }
  for (; i < width; ++i) {
    out[i] = static_cast<T>(widen(static_cast<T>(widen(x[i]) * scale)) * widen(weight[i]));
  }
}

template <typename T>
struct Normalise {
  const T* x;
  std::int64_t stride, width;
  const T* weight;
  float epsilon;
  T* out;

  template <int W>
  MILLRACE_INLINE void run(std::int64_t from, std::int64_t to) const {
    for (auto row = from; row < to; ++row) {
      normalise_one<W>(x + row * stride, weight, width, epsilon, out + row * width);
    }
  }
};

// Normalises heads that have norms, and applies the rotary embedding, in place.
template <typename T>
struct Turn {
  T* x;
  std::int64_t stride, queries, heads, width;
  // Norms of each head's queries and of its keys; null without norms.
  const T* norms[2];
  float epsilon;
  // `width` numbers for each row; the sines of the first half are negative.
  const T *cos, *sin;

  template <int W>
  MILLRACE_INLINE void turn(T* head, const T* c, const T* s) const {
    const auto half = width / 2;
    std::int64_t i = 0;
    for (; i + W <= half; i += W) {
      const auto a = load<W>(head + i), b = load<W>(head + half + i);
      store<W>(head + i, a * load<W>(c + i) + b * load<W>(s + i));
      store<W>(head + half + i, b * load<W>(c + half + i) + a * load<W>(s + half + i));
    }
    for (; i < half; ++i) {
      const float a = widen(head[i]), b = widen(head[half + i]);
      head[i] = static_cast<T>(a * widen(c[i]) + b * widen(s[i]));
      head[half + i] = static_cast<T>(b * widen(c[half + i]) + a * widen(s[half + i]));
    }
  }

  template <int W>
  MILLRACE_INLINE void run(std::int64_t from, std::int64_t to) const {
    for (auto row = from; row < to; ++row) {
      for (std::int64_t h = 0; h < heads; ++h) {
        T* head = x + row * stride + h * width;
        if (const T* norm = norms[h < queries ? 0 : 1]) {
          normalise_one<W>(head, norm, width, epsilon, head);
        }
        turn<W>(head, cos + row * width, sin + row * width);
      }
    }
  }
};

// silu(gate) * up. A row has `width` gates, then `width` ups.
template <typename T>
struct Gate {
  const T* both;
  std::int64_t stride, width;
  T* out;

  template <int W>
  MILLRACE_INLINE void run(std::int64_t from, std::int64_t to) const {
    for (auto row = from; row < to; ++row) {
      const T *gate = both + row * stride, *up = gate + width;
      T* result = out + row * width;
      std::int64_t i = 0;
      for (; i + W <= width; i += W) {
        const auto x = load<W>(gate + i);
        store<W>(result + i, x / (1.0f + exp<W>(-x)) * load<W>(up + i));
      }
      for (; i < width; ++i) {
        const float x = widen(gate[i]);
        result[i] = static_cast<T>(x / (1.0f + std::exp(-x)) * widen(up[i]));
      }
    }
  }
};

template <typename Loop>
void over_rows(const Loop& loop, std::int64_t rows, std::int64_t width) {
  at::parallel_for(0, rows, rows_of_a_thread(width), [&](std::int64_t from, std::int64_t to) {
    run_best(loop, from, to);
  });
}

} // namespace

extern "C" void millrace_limit_lanes(std::int64_t most) {
  lanes = std::min<int>(widest(), static_cast<int>(most));
}

void normalise(const at::Tensor* x, const at::Tensor* weight, double epsilon, const at::Tensor* out) {
  const auto rows = x->size(0), width = x->size(1);
  check_rows(*x, rows, width);
  TORCH_CHECK(weight->is_contiguous() && weight->numel() == width && out->is_contiguous());
  TORCH_CHECK(out->sizes() == x->sizes() && weight->scalar_type() == x->scalar_type());
  of_kind(*x, [&](auto kind) {
    using T = decltype(kind);
    const Normalise<T> loop{
        data<T>(*x), x->stride(0), width, data<T>(*weight), static_cast<float>(epsilon), data<T>(*out)};
    over_rows(loop, rows, width);
  });
}

void turn_heads(
    const at::Tensor* x,
    std::int64_t queries,
    const at::Tensor* query_norm,
    const at::Tensor* key_norm,
    double epsilon,
    const at::Tensor* cos,
    const at::Tensor* sin) {
  const auto rows = x->size(0), width = cos->size(-1);
  check_rows(*x, rows, x->size(1));
  TORCH_CHECK(width > 0 && width % 2 == 0 && x->size(1) % width == 0, "not whole heads");
  for (const auto* angles : {cos, sin}) {
    TORCH_CHECK(angles->is_contiguous() && angles->numel() == rows * width);
    TORCH_CHECK(angles->scalar_type() == x->scalar_type());
  }
  for (const auto* norm : {query_norm, key_norm}) {
    TORCH_CHECK(norm == nullptr || (norm->is_contiguous() && norm->numel() == width));
    TORCH_CHECK(norm == nullptr || norm->scalar_type() == x->scalar_type());
  }
  of_kind(*x, [&](auto kind) {
    using T = decltype(kind);
    const auto norm = [](const at::Tensor* one) { return one == nullptr ? nullptr : data<T>(*one); };
    const Turn<T> loop{
        data<T>(*x),
        x->stride(0),
        queries,
        x->size(1) / width,
        width,
        {norm(query_norm), norm(key_norm)},
        static_cast<float>(epsilon),
        data<T>(*cos),
        data<T>(*sin)};
    over_rows(loop, rows, x->size(1));
  });
}

void gate(const at::Tensor* both, const at::Tensor* out) {
  check_rows(*both, out->size(0), 2 * out->size(1));
  TORCH_CHECK(out->is_contiguous(), "the result's rows lie apart");
  TORCH_CHECK(out->scalar_type() == both->scalar_type());
  of_kind(*both, [&](auto kind) {
    using T = decltype(kind);
    over_rows(Gate<T>{data<T>(*both), both->stride(0), out->size(1), data<T>(*out)}, both->size(0), both->size(1));
  });
}

} // namespace millrace::kernels
