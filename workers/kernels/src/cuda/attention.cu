// Attention of one new token of each lane to the positions that are cached, on CUDA. Read after rows.cu.

namespace millrace::cuda {

// Normalises and turns one head of D numbers by one warp: `out` is in shared memory.
template <typename T, int D>
__device__ void turn(const T* from, const T* norm, float epsilon, const float* cos, const float* sin, float* out) {
  const int lane = threadIdx.x % 32;
  constexpr int N = (D + 31) / 32;
  float numbers[N], squares = 0;
UNROLL
  for (int n = 0; n < N; ++n) {
    const int i = lane + 32 * n;
    numbers[n] = i < D ? widen(from[i]) : 0;
    squares += numbers[n] * numbers[n];
  }
  if (norm != nullptr) {
    const float scale = rsqrtf(warp_sum(squares) / D + epsilon);
UNROLL
    for (int n = 0; n < N; ++n) {
      const int i = lane + 32 * n;
      if (i < D) {
        numbers[n] = rounded<T>(rounded<T>(numbers[n] * scale) * widen(norm[i]));
      }
    }
  }
UNROLL
  for (int n = 0; n < N; ++n) {
    if (lane + 32 * n < D) {
      out[lane + 32 * n] = numbers[n];
    }
  }
  __syncwarp();
  float turned[N] = {};
UNROLL
  for (int n = 0; n < N; ++n) {
    const int i = lane + 32 * n;
    if (i < D) {
      const float product = rounded<T>(numbers[n] * rounded<T>(cos[i]));
      turned[n] = rounded<T>(product + out[(i + D / 2) % D] * rounded<T>(sin[i]));
    }
  }
  __syncwarp();
UNROLL
  for (int n = 0; n < N; ++n) {
    if (lane + 32 * n < D) {
      out[lane + 32 * n] = turned[n];
    }
  }
}

// Eight numbers of a key or value.
__device__ inline void load_eight(const Bf16* at, float (&out)[8]) { unpack(*reinterpret_cast<const uint4*>(at), out); }
__device__ inline void load_eight(const float* at, float (&out)[8]) {
  float four[4];
  for (int half = 0; half < 2; ++half) {
    unpack(reinterpret_cast<const uint4*>(at)[half], four);
    for (int i = 0; i < 4; ++i) {
      out[4 * half + i] = four[i];
    }
  }
}

// Attention of the E or fewer query heads of one key head to one share of a row's positions. Scores and weights are added up
// as they come: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018. The shares of a row are put
// together by the last of them.
template <typename T, int D, int E>
__device__ void attend(const Attend& a) {
  constexpr int V = 8, L = D / V, P = 32 / L, WARPS = kAttendThreads / 32, U = E > 4 ? 2 : 4;
  __shared__ float heads[E + 1][D];
  __shared__ float merged[WARPS][E][D + 2];
  __shared__ int last_share;
  let_next_start();
  wait_for_previous();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int split = blockIdx.x, group = blockIdx.y, row = blockIdx.z, each = a.heads / a.groups;
  const StepRow own = a.rows[row];
  const int blocks = (own.length + kBlock - 1) / kBlock;
  const int share = (blocks + a.splits - 1) / a.splits * kBlock;
  const int from = split * share, to = min(from + share, own.length);
  if (from >= to) {
    return;
  }
  const int shares = (own.length + share - 1) / share;
  const bool has_own = to == own.length;
  const T* qkv = static_cast<const T*>(a.qkv) + static_cast<long long>(row) * (a.heads + 2 * a.groups) * D;
  T *keys = static_cast<T*>(a.keys), *values = static_cast<T*>(a.values);
  const float *cos = a.cos + static_cast<long long>(own.position) * D, *sin = a.sin + static_cast<long long>(own.position) * D;
  const long long cell_width = static_cast<long long>(a.groups) * D;
  for (int head = warp; head <= each; head += WARPS) {
    const bool is_key = head == each;
    const int number = is_key ? a.heads + group : group * each + head;
    const void* norm = is_key ? a.key_norm : a.query_norm;
    turn<T, D>(qkv + number * D, static_cast<const T*>(norm), a.epsilon, cos, sin, heads[is_key ? E : head]);
  }
  __syncthreads();
  if (has_own) {
    for (int i = threadIdx.x; i < D; i += kAttendThreads) {
      keys[own.cell * cell_width + group * D + i] = narrow<T>(heads[E][i]);
      values[own.cell * cell_width + group * D + i] = qkv[(a.heads + a.groups + group) * D + i];
    }
    __syncthreads();
  }

  const int sub = lane % L, which = lane / L;
  const float scale = rsqrtf(static_cast<float>(D));
  float query[E][V], sums[E][V], most[E], total[E];
UNROLL
  for (int h = 0; h < E; ++h) {
    most[h] = -INFINITY;
    total[h] = 0;
UNROLL
    for (int i = 0; i < V; ++i) {
      query[h][i] = h < each ? heads[h][sub * V + i] * scale : 0;
      sums[h][i] = 0;
    }
  }
  const int* table = a.tables + static_cast<long long>(row) * a.table;
  for (int base = from + warp * P * U; base < to; base += WARPS * P * U) {
    float key[U][V] = {}, value[U][V] = {};
UNROLL
    for (int u = 0; u < U; ++u) {
      const int position = base + u * P + which;
      if (position < to) {
        const long long cell = static_cast<long long>(table[position / kBlock]) * kBlock + position % kBlock;
        const long long at = cell * cell_width + group * D + sub * V;
        load_eight(keys + at, key[u]);
        load_eight(values + at, value[u]);
      }
    }
UNROLL
    for (int u = 0; u < U; ++u) {
      const bool live = base + u * P + which < to;
UNROLL
      for (int h = 0; h < E; ++h) {
        float score = 0;
UNROLL
        for (int i = 0; i < V; ++i) {
          score += query[h][i] * key[u][i];
        }
UNROLL
        for (int mask = L / 2; mask > 0; mask /= 2) {
          score += __shfl_xor_sync(0xffffffffu, score, mask);
        }
        if (live) {
          const float larger = fmaxf(most[h], score);
          const float shrink = expf(most[h] - larger), weight = expf(score - larger);
          most[h] = larger;
          total[h] = total[h] * shrink + weight;
UNROLL
          for (int i = 0; i < V; ++i) {
            sums[h][i] = sums[h][i] * shrink + weight * value[u][i];
          }
        }
      }
    }
  }
  // The positions of a warp, then the warps.
UNROLL
  for (int h = 0; h < E; ++h) {
UNROLL
    for (int mask = L; mask < 32; mask *= 2) {
      const float theirs = __shfl_xor_sync(0xffffffffu, most[h], mask);
      const float larger = fmaxf(most[h], theirs);
      const float shrink = most[h] == larger ? 1 : expf(most[h] - larger);
      most[h] = larger;
      total[h] *= shrink;
      total[h] += __shfl_xor_sync(0xffffffffu, total[h], mask);
UNROLL
      for (int i = 0; i < V; ++i) {
        sums[h][i] *= shrink;
        sums[h][i] += __shfl_xor_sync(0xffffffffu, sums[h][i], mask);
      }
    }
    if (which == 0) {
UNROLL
      for (int i = 0; i < V; ++i) {
        merged[warp][h][sub * V + i] = sums[h][i];
      }
      if (sub == 0) {
        merged[warp][h][D] = most[h];
        merged[warp][h][D + 1] = total[h];
      }
    }
  }
  __syncthreads();
  T* out = static_cast<T*>(a.out) + (static_cast<long long>(row) * a.heads + group * each) * D;
  const long long place = static_cast<long long>(row) * a.groups + group;
  float* parts = a.parts + (place * a.splits + split) * each * (D + 2);
  for (int at = threadIdx.x; at < each * D; at += kAttendThreads) {
    const int h = at / D, i = at % D;
    float largest = -INFINITY, sum = 0, weight = 0;
    for (int w = 0; w < WARPS; ++w) {
      largest = fmaxf(largest, merged[w][h][D]);
    }
    for (int w = 0; w < WARPS; ++w) {
      const float by = merged[w][h][D + 1] == 0 ? 0 : expf(merged[w][h][D] - largest);
      sum += merged[w][h][i] * by;
      weight += merged[w][h][D + 1] * by;
    }
    if (shares == 1) {
      out[at] = narrow<T>(sum / weight);
      continue;
    }
    parts[h * (D + 2) + i] = sum;
    if (i == 0) {
      parts[h * (D + 2) + D] = largest;
      parts[h * (D + 2) + D + 1] = weight;
    }
  }
  if (shares == 1) {
    return;
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last_share = atomicAdd(a.done + place, 1) == shares - 1;
  }
  __syncthreads();
  if (!last_share) {
    return;
  }
  __threadfence();
  const volatile float* all = a.parts + place * a.splits * each * (D + 2);
  for (int at = threadIdx.x; at < each * D; at += kAttendThreads) {
    const int h = at / D, i = at % D;
    float largest = -INFINITY, sum = 0, weight = 0;
    for (int s = 0; s < shares; ++s) {
      largest = fmaxf(largest, all[(s * each + h) * (D + 2) + D]);
    }
    for (int s = 0; s < shares; ++s) {
      const volatile float* part = all + (s * each + h) * (D + 2);
      const float by = expf(part[D] - largest);
      sum += part[i] * by;
      weight += part[D + 1] * by;
    }
    out[at] = narrow<T>(sum / weight);
  }
  if (threadIdx.x == 0) {
    a.done[place] = 0;
  }
}

}  // namespace millrace::cuda
