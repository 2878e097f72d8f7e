// One new token of each lane, between and around the matrix products, on CUDA. Compiled at run time for the device that there
// is (launch.cc), and for tests by the C++ compiler, which runs each block as fibers (emulated.cc).

namespace millrace::cuda {

struct Bf16 {
  unsigned short bits;
};

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(Bf16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }

// To the nearest, ties to even.
template <typename T>
__device__ inline T narrow(float x);
template <>
__device__ inline float narrow<float>(float x) {
  return x;
}
template <>
__device__ inline Bf16 narrow<Bf16>(float x) {
  const unsigned bits = __float_as_uint(x);
  if (x != x) {
    return {static_cast<unsigned short>((bits >> 16) | 0x40)};
  }
  return {static_cast<unsigned short>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

template <typename T>
__device__ inline float rounded(float x) {
  return widen(narrow<T>(x));
}

// Numbers of 16 bytes.
template <typename T>
constexpr int kVector = 16 / sizeof(T);

__device__ inline void unpack(uint4 bits, float (&out)[8]) {
  const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
UNROLL
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = __uint_as_float(words[i] << 16);
    out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}

__device__ inline void unpack(uint4 bits, float (&out)[4]) {
  out[0] = __uint_as_float(bits.x);
  out[1] = __uint_as_float(bits.y);
  out[2] = __uint_as_float(bits.z);
  out[3] = __uint_as_float(bits.w);
}

// The sum over a warp, to all lanes.
__device__ inline float warp_sum(float x) {
UNROLL
  for (int mask = 16; mask > 0; mask /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, mask);
  }
  return x;
}

// The sum over a block, to all threads. `scratch` has a place for each warp.
__device__ inline float block_sum(float x, float* scratch) {
  x = warp_sum(x);
  const int warps = blockDim.x / 32;
  if (threadIdx.x % 32 == 0) {
    scratch[threadIdx.x / 32] = x;
  }
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < warps; ++i) {
    sum += scratch[i];
  }
  __syncthreads();
  return sum;
}

// A product of up to R rows. `warps` warps share a column, or with gates a pair of columns. The first numbers of the matrix
// are on their way before the kernel before this one has ended: only `x` and `onto` are waited for.
template <typename T, int R, bool GATE>
__device__ void product(const Product& a) {
  constexpr int V = kVector<T>, U = 4, WARPS = kProductThreads / 32, SIDES = GATE ? 2 : 1;
  DYNAMIC_SHARED(uint4, shared);
  __shared__ float scratch[R][WARPS];
  __shared__ float parts[WARPS][SIDES][R];
  T* x = reinterpret_cast<T*>(shared);
  let_next_start();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int column = blockIdx.x * (WARPS / a.warps) + warp / a.warps;
  const bool live = column < a.columns;
  const int chunks = a.width / V, first = warp % a.warps * 32 + lane, step = 32 * a.warps;
  const uint4* weight = static_cast<const uint4*>(a.weight) + static_cast<long long>(live ? column : 0) * chunks;
  const long long apart = static_cast<long long>(a.columns) * chunks;
  uint4 ahead[SIDES][U] = {};
UNROLL
  for (int u = 0; u < U; ++u) {
    if (live && first + u * step < chunks) {
UNROLL
      for (int side = 0; side < SIDES; ++side) {
        ahead[side][u] = load_once(weight + side * apart + first + u * step);
      }
    }
  }
  wait_for_previous();

  // `x` into shared memory, normalised.
  const uint4* rows = static_cast<const uint4*>(a.x);
  if (a.norm == nullptr) {
    for (int at = threadIdx.x; at < R * chunks; at += kProductThreads) {
      shared[at] = rows[at];
    }
  } else {
    float squares[R] = {};
UNROLL
    for (int r = 0; r < R; ++r) {
      for (int at = threadIdx.x; at < chunks; at += kProductThreads) {
        const uint4 bits = rows[r * chunks + at];
        float numbers[V];
        unpack(bits, numbers);
        for (int i = 0; i < V; ++i) {
          squares[r] += numbers[i] * numbers[i];
        }
        shared[r * chunks + at] = bits;
      }
      squares[r] = warp_sum(squares[r]);
      if (lane == 0) {
        scratch[r][warp] = squares[r];
      }
    }
    __syncthreads();
    const T* norm = static_cast<const T*>(a.norm);
UNROLL
    for (int r = 0; r < R; ++r) {
      float sum = 0;
      for (int i = 0; i < WARPS; ++i) {
        sum += scratch[r][i];
      }
      const float scale = rsqrtf(sum / a.width + a.epsilon);
      // Each thread what it stored itself.
      for (int at = threadIdx.x; at < chunks; at += kProductThreads) {
        for (int i = 0; i < V; ++i) {
          const int place = at * V + i;
          T& number = x[r * a.width + place];
          number = narrow<T>(rounded<T>(widen(number) * scale) * widen(norm[place]));
        }
      }
    }
  }
  __syncthreads();

  float sums[SIDES][R] = {};
  for (int base = first; base < chunks; base += U * step) {
UNROLL
    for (int u = 0; u < U; ++u) {
      const int at = base + u * step;
      if (at >= chunks) {
        break;
      }
      float numbers[SIDES][V];
UNROLL
      for (int side = 0; side < SIDES; ++side) {
        unpack(ahead[side][u], numbers[side]);
        if (live && at + U * step < chunks) {
          ahead[side][u] = load_once(weight + side * apart + at + U * step);
        }
      }
UNROLL
      for (int r = 0; r < R; ++r) {
        float row[V];
        unpack(shared[r * chunks + at], row);
UNROLL
        for (int side = 0; side < SIDES; ++side) {
UNROLL
          for (int i = 0; i < V; ++i) {
            sums[side][r] += numbers[side][i] * row[i];
          }
        }
      }
    }
  }
UNROLL
  for (int side = 0; side < SIDES; ++side) {
UNROLL
    for (int r = 0; r < R; ++r) {
      const float sum = warp_sum(sums[side][r]);
      if (lane == 0) {
        parts[warp][side][r] = sum;
      }
    }
  }
  __syncthreads();
  if (!live || warp % a.warps != 0 || lane >= R) {
    return;
  }
  const int r = lane;
  const T* bias = static_cast<const T*>(a.bias);
  float both[SIDES];
UNROLL
  for (int side = 0; side < SIDES; ++side) {
    both[side] = bias == nullptr ? 0 : widen(bias[side * a.columns + column]);
    for (int i = 0; i < a.warps; ++i) {
      both[side] += parts[warp + i][side][r];
    }
    both[side] = rounded<T>(both[side]);
  }
  const long long at = static_cast<long long>(r) * a.columns + column;
  float value = both[0];
  if (GATE) {
    value = rounded<T>(value / (1 + expf(-value))) * both[SIDES - 1];
  }
  if (a.onto != nullptr) {
    value += widen(static_cast<const T*>(a.onto)[at]);
  }
  static_cast<T*>(a.out)[at] = narrow<T>(value);
}

// RMSNorm of one row a block.
template <typename T>
__device__ void normalise(const Rows& a) {
  __shared__ float scratch[kRowThreads / 32];
  let_next_start();
  wait_for_previous();
  const T* x = static_cast<const T*>(a.x) + static_cast<long long>(blockIdx.x) * a.width;
  float squares = 0;
  for (int i = threadIdx.x; i < a.width; i += kRowThreads) {
    squares += widen(x[i]) * widen(x[i]);
  }
  const float scale = rsqrtf(block_sum(squares, scratch) / a.width + a.epsilon);
  T* out = static_cast<T*>(a.out) + static_cast<long long>(blockIdx.x) * a.width;
  for (int i = threadIdx.x; i < a.width; i += kRowThreads) {
    out[i] = narrow<T>(rounded<T>(widen(x[i]) * scale) * widen(static_cast<const T*>(a.weight)[i]));
  }
}

// SwiGLU's middle, one row a block: of gates and ups [2 width], silu(gate) * up.
template <typename T>
__device__ void gate(const Rows& a) {
  let_next_start();
  wait_for_previous();
  const T* x = static_cast<const T*>(a.x) + 2ll * blockIdx.x * a.width;
  T* out = static_cast<T*>(a.out) + static_cast<long long>(blockIdx.x) * a.width;
  for (int i = threadIdx.x; i < a.width; i += kRowThreads) {
    const float number = widen(x[i]);
    out[i] = narrow<T>(rounded<T>(number / (1 + expf(-number))) * widen(x[a.width + i]));
  }
}

template <typename T>
__device__ void embed(const Embed& a) {
  let_next_start();
  wait_for_previous();
  const T* from = static_cast<const T*>(a.table) + static_cast<long long>(a.rows[blockIdx.x].token) * a.width;
  T* out = static_cast<T*>(a.out) + static_cast<long long>(blockIdx.x) * a.width;
  for (int i = threadIdx.x; i < a.width; i += kRowThreads) {
    out[i] = from[i];
  }
}

}  // namespace millrace::cuda
