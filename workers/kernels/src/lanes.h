// Vectors as wide as the processor's. A loop is a struct with `template <int W> void run(from,
// to)`, always inlined; `run_best` runs it with the widest W that this processor supports.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>

#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>

#define MILLRACE_INLINE inline __attribute__((always_inline))

namespace millrace::kernels {

template <int W>
struct Vectors {
  typedef float Floats __attribute__((vector_size(W * 4)));
  typedef std::uint32_t Bits __attribute__((vector_size(W * 4)));
  typedef std::int32_t Ints __attribute__((vector_size(W * 4)));
  typedef std::uint16_t Halves __attribute__((vector_size(W * 2)));
};

template <int W>
using Floats = typename Vectors<W>::Floats;

template <int W>
MILLRACE_INLINE Floats<W> load(const float* from) {
  Floats<W> x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

// The upper half of a float is a bfloat16.
template <int W>
MILLRACE_INLINE Floats<W> load(const c10::BFloat16* from) {
  typename Vectors<W>::Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  return (Floats<W>)(__builtin_convertvector(halves, typename Vectors<W>::Bits) << 16);
}

template <int W>
MILLRACE_INLINE void store(float* to, Floats<W> x) {
  std::memcpy(to, &x, sizeof x);
}

// Rounds to the nearest, ties to even. NaN stays NaN.
template <int W>
MILLRACE_INLINE void store(c10::BFloat16* to, Floats<W> x) {
  typedef typename Vectors<W>::Bits Bits;
  const Bits bits = (Bits)x;
  const Bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Bits chosen = x == x ? rounded : (bits >> 16) | 0x40;
  const auto halves = __builtin_convertvector(chosen, typename Vectors<W>::Halves);
  std::memcpy(to, &halves, sizeof halves);
}

// x rounded to T.
template <int W, typename T>
MILLRACE_INLINE Floats<W> rounded(Floats<W> x) {
  T kept[W];
  store<W>(kept, x);
  return load<W>(kept);
}

MILLRACE_INLINE float widen(float x) {
  return x;
}

MILLRACE_INLINE float widen(c10::BFloat16 x) {
  return static_cast<float>(x);
}

// Sums of neighbours: those of a, then those of b.
template <int W>
MILLRACE_INLINE Floats<W> add_neighbours(Floats<W> a, Floats<W> b) {
#if defined(__clang__)
  Floats<W> sums;
  for (int i = 0; i < W / 2; ++i) {
    sums[i] = a[2 * i] + a[2 * i + 1];
    sums[W / 2 + i] = b[2 * i] + b[2 * i + 1];
  }
  return sums;
#else
  typename Vectors<W>::Ints even, odd;
  for (int i = 0; i < W; ++i) {
    even[i] = 2 * i;
    odd[i] = 2 * i + 1;
  }
  return __builtin_shuffle(a, b, even) + __builtin_shuffle(a, b, odd);
#endif
}

// The sum of each of W vectors.
template <int W>
MILLRACE_INLINE Floats<W> sums(Floats<W> (&x)[W]) {
#pragma GCC unroll 16
  for (int count = W; count > 1; count /= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < count / 2; ++i) {
      x[i] = add_neighbours<W>(x[2 * i], x[2 * i + 1]);
    }
  }
  return x[0];
}

template <int W>
MILLRACE_INLINE float sum(Floats<W> x) {
  float part[W];
  store<W>(part, x);
  for (int half = W / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      part[i] += part[i + half];
    }
  }
  return part[0];
}

// e to the x, with a relative error of about 1e-7: a power of two times a polynomial (Cephes,
// expf). x is clamped to -87 to 88.
template <int W>
MILLRACE_INLINE Floats<W> exp(Floats<W> x) {
  typedef typename Vectors<W>::Ints Ints;
  const Floats<W> none = {};
  x = x < none - 87.0f ? none - 87.0f : x;
  x = x > none + 88.0f ? none + 88.0f : x;
  // Adding 1.5 * 2^23 leaves the nearest whole number in the lower bits.
  const Floats<W> shifted = x * 1.44269504f + 12582912.0f;
  const Floats<W> whole = shifted - 12582912.0f;
  const Floats<W> rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  Floats<W> y = none + 1.9875691500e-4f;
  y = y * rest + 1.3981999507e-3f;
  y = y * rest + 8.3334519073e-3f;
  y = y * rest + 4.1665795894e-2f;
  y = y * rest + 1.6666665459e-1f;
  y = y * rest + 5.0000001201e-1f;
  y = y * rest * rest + rest + 1.0f;
  const Ints power = (Ints)shifted << 23;
  return (Floats<W>)((Ints)y + power);
}

#if defined(__x86_64__)
template <typename Loop>
__attribute__((target("avx2,fma"))) void run_avx2(const Loop& loop, std::int64_t from, std::int64_t to) {
  loop.template run<8>(from, to);
}

template <typename Loop>
__attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"))) void
run_avx512(const Loop& loop, std::int64_t from, std::int64_t to) {
  loop.template run<16>(from, to);
}
#endif

// The widest vectors that this processor has.
inline int widest() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return wide ? 16 : 8;
  }
#endif
  return 4;
}

// The width that loops run with. Tests set it lower.
inline std::atomic<int> lanes{widest()};

template <typename Loop>
void run_best(const Loop& loop, std::int64_t from, std::int64_t to) {
  switch (lanes.load(std::memory_order_relaxed)) {
#if defined(__x86_64__)
    case 16:
      return run_avx512(loop, from, to);
    case 8:
      return run_avx2(loop, from, to);
#endif
    default:
      loop.template run<4>(from, to);
  }
}

// Rows may be strided; the numbers of one row are contiguous.
inline void check_rows(const at::Tensor& x, std::int64_t rows, std::int64_t width) {
  TORCH_CHECK(x.dim() == 2 && x.size(0) == rows && x.size(1) == width && x.device().is_cpu(), "not these rows");
  TORCH_CHECK(width <= 1 || x.stride(1) == 1, "a row's numbers lie apart");
}

// Calls `body` with a number of the tensor's kind.
template <typename Body>
void of_kind(const at::Tensor& tensor, const Body& body) {
  if (tensor.scalar_type() == at::kFloat) {
    return body(float());
  }
  TORCH_CHECK(tensor.scalar_type() == at::kBFloat16, "neither f32 nor bf16");
  body(c10::BFloat16());
}

} // namespace millrace::kernels
