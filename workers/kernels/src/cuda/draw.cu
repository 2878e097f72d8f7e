// The token that is drawn from each row of logits, on CUDA. Read after rows.cu.

namespace millrace::cuda {

// The sum over a warp, to all lanes.
__device__ inline double warp_sum(double x) {
  for (int mask = 16; mask > 0; mask /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, mask);
  }
  return x;
}

// One row a block: the first token at which the sum of probabilities passes the row's random number, and its
// log-probability; or the likeliest token. Probabilities are added up in f64, in the order of the tokens: by the ranges of the
// warps, then by parts of one range, then one by one.
template <typename T>
__device__ void draw(const Draw& a) {
  constexpr int WARPS = kDrawThreads / 32;
  __shared__ float most[WARPS];
  __shared__ int likeliest[WARPS];
  __shared__ double sums[WARPS];
  let_next_start();
  wait_for_previous();
  const StepRow own = a.rows[blockIdx.x];
  const T* logits = static_cast<const T*>(a.logits) + static_cast<long long>(blockIdx.x) * a.vocabulary;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, count = min(own.below, a.vocabulary);
  const bool greedy = own.temperature == 0;
  const float temperature = greedy ? 1 : own.temperature;
  const auto scaled = [&](int i) { return widen(logits[i]) / temperature; };

  // The largest, the first of it.
  float largest = -INFINITY;
  int place = 0x7fffffff;
  for (int i = threadIdx.x; i < count; i += kDrawThreads) {
    const float x = scaled(i);
    if (x > largest) {
      largest = x;
      place = i;
    }
  }
  for (int mask = 16; mask > 0; mask /= 2) {
    const float theirs = __shfl_xor_sync(0xffffffffu, largest, mask);
    const int at = __shfl_xor_sync(0xffffffffu, place, mask);
    if (theirs > largest || (theirs == largest && at < place)) {
      largest = theirs;
      place = at;
    }
  }
  if (lane == 0) {
    most[warp] = largest;
    likeliest[warp] = place;
  }
  __syncthreads();
  for (int w = 0; w < WARPS; ++w) {
    if (most[w] > largest || (most[w] == largest && likeliest[w] < place)) {
      largest = most[w];
      place = likeliest[w];
    }
  }

  // Sums of the warps' ranges.
  const auto weight = [&](int i) { return static_cast<double>(expf(scaled(i) - largest)); };
  const auto range_sum = [&](int from, int to) {
    double sum = 0;
    for (int i = from + lane; i < to; i += 32) {
      sum += weight(i);
    }
    return warp_sum(sum);
  };
  const int range = (count + WARPS - 1) / WARPS;
  const double mine = range_sum(min(warp * range, count), min((warp + 1) * range, count));
  if (lane == 0) {
    sums[warp] = mine;
  }
  __syncthreads();
  double whole = 0;
  for (int w = 0; w < WARPS; ++w) {
    whole += sums[w];
  }
  if (greedy) {
    if (threadIdx.x == 0) {
      a.out[blockIdx.x] = {place, static_cast<float>(-log(whole))};
    }
    return;
  }
  // The part that holds the threshold, and what is before it. The last part with a weight, if rounding passes all.
  const double threshold = own.random * whole;
  double before = 0;
  const auto find = [&](int parts) {
    int found = 0;
    double sum = before, at_found = before;
    for (int p = 0; p < parts; ++p) {
      if (sums[p] > 0) {
        found = p;
        at_found = sum;
        if (sum + sums[p] > threshold) {
          break;
        }
      }
      sum += sums[p];
    }
    before = at_found;
    return found;
  };
  const int first = find(WARPS) * range, last = min(first + range, count);
  __syncthreads();
  const int part = (last - first + WARPS - 1) / WARPS;
  const double of_part = range_sum(min(first + warp * part, last), min(first + (warp + 1) * part, last));
  if (lane == 0) {
    sums[warp] = of_part;
  }
  __syncthreads();
  const int start = first + find(WARPS) * part, end = min(start + part, last);
  if (threadIdx.x == 0) {
    int token = start;
    double sum = before;
    for (int i = start; i < end; ++i) {
      const double w = weight(i);
      if (w > 0) {
        token = i;
      }
      sum += w;
      if (sum > threshold) {
        break;
      }
    }
    a.out[blockIdx.x] = {token, static_cast<float>(static_cast<double>(scaled(token) - largest) - log(whole))};
  }
}

}  // namespace millrace::cuda
