// Runs the kernels of this folder on this processor, for tests: a block's threads are fibers, which change at each barrier. Slow.

// A fiber leaves its stack by a long jump, which this would take for an error.
#undef _FORTIFY_SOURCE

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include <ATen/ATen.h>

#include "millrace-kernels/src/cuda/launch.h"

namespace {

struct Index {
  unsigned x, y, z;
};
struct uint4 {
  unsigned x, y, z, w;
};

Index threadIdx, blockIdx, blockDim;

// The threads of one block.
struct Block {
  static constexpr std::size_t kStack = 64 << 10;
  struct Barrier {
    unsigned arrived = 0, generation = 0;
  };
  struct Fiber {
    std::vector<char> stack;
    // Where it goes on; once it was entered.
    jmp_buf place;
    bool entered = false;
    // The barrier that it waits at, and its generation then.
    const Barrier* at = nullptr;
    unsigned generation = 0;
    bool ended = false;
  };

  std::vector<Fiber> fibers;
  jmp_buf outside;
  std::vector<Barrier> warps;
  Barrier all;
  std::vector<char> dynamic;
  // A place for each thread of what warps exchange.
  std::vector<double> exchanged;
  const std::function<void()>* body = nullptr;

  // Jumps, since changes of contexts are two calls of the kernel each.
  [[gnu::noinline]] void yield() {
    if (_setjmp(fibers[threadIdx.x].place) == 0) {
      _longjmp(outside, 1);
    }
  }

  [[gnu::noinline]] void resume() {
    if (_setjmp(outside) != 0) {
      return;
    }
    Fiber& fiber = fibers[threadIdx.x];
    if (fiber.entered) {
      _longjmp(fiber.place, 1);
    }
    fiber.entered = true;
    fiber.stack.resize(kStack);
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber.stack.data();
    context.uc_stack.ss_size = kStack;
    context.uc_link = nullptr;
    makecontext(&context, enter, 0);
    setcontext(&context);
  }

  void wait(Barrier& barrier, unsigned threads) {
    if (++barrier.arrived == threads) {
      barrier.arrived = 0;
      ++barrier.generation;
      return;
    }
    Fiber& fiber = fibers[threadIdx.x];
    fiber.at = &barrier;
    fiber.generation = barrier.generation;
    while (fiber.generation == barrier.generation) {
      yield();
    }
    fiber.at = nullptr;
  }

  static Block*& current() {
    static Block* one = nullptr;
    return one;
  }

  // A fiber's life: one block after another.
  static void enter() {
    for (;;) {
      Block& block = *current();
      (*block.body)();
      block.fibers[threadIdx.x].ended = true;
      block.yield();
    }
  }

  void run(unsigned threads, std::size_t shared, const std::function<void()>& kernel) {
    fibers.resize(std::max<std::size_t>(fibers.size(), threads));
    warps.assign((threads + 31) / 32, {});
    all = {};
    dynamic.resize(shared + 16);
    exchanged.resize(threads);
    body = &kernel;
    current() = this;
    for (Fiber& fiber : fibers) {
      fiber.ended = false;
      fiber.at = nullptr;
    }
    for (bool more = true; more;) {
      bool moved = more = false;
      for (unsigned thread = 0; thread < threads; ++thread) {
        Fiber& fiber = fibers[thread];
        if (fiber.ended) {
          continue;
        }
        more = true;
        if (fiber.at == nullptr || fiber.generation != fiber.at->generation) {
          moved = true;
          threadIdx.x = thread;
          resume();
        }
      }
      if (!moved && more) {
        // None of them ends.
        fibers.clear();
        TORCH_CHECK(false, "threads of a block wait at unlike barriers");
      }
    }
  }
};

template <typename T>
T __shfl_xor_sync(unsigned, T x, int mask) {
  Block& block = *Block::current();
  const unsigned thread = threadIdx.x;
  auto& warp = block.warps[thread / 32];
  std::memcpy(&block.exchanged[thread], &x, sizeof x);
  block.wait(warp, 32);
  T theirs;
  std::memcpy(&theirs, &block.exchanged[thread ^ static_cast<unsigned>(mask)], sizeof theirs);
  block.wait(warp, 32);
  return theirs;
}

void __syncwarp() {
  Block::current()->wait(Block::current()->warps[threadIdx.x / 32], 32);
}
void __syncthreads() {
  Block::current()->wait(Block::current()->all, blockDim.x);
}
void __threadfence() {}

int atomicAdd(int* at, int more) {
  const int before = *at;
  *at += more;
  return before;
}

float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

using std::min;

} // namespace

// In a namespace of its own: names that the source shares with the host's stay apart.
#define __device__
#define UNROLL
#define __shared__ static
#define DYNAMIC_SHARED(type, name) type* name = reinterpret_cast<type*>(Block::current()->dynamic.data())

#include "millrace-kernels/src/cuda/arguments.h"

namespace millrace::cuda {

namespace {

void wait_for_previous() {}
void let_next_start() {}
uint4 load_once(const uint4* from) { return *from; }

} // namespace

} // namespace millrace::cuda

#include "millrace-kernels/src/cuda/rows.cu"
#include "millrace-kernels/src/cuda/attention.cu"
#include "millrace-kernels/src/cuda/draw.cu"

namespace millrace::cuda {

namespace {

using Kernel = std::function<void(const void*)>;

template <typename Argument>
Kernel of(void (*kernel)(const Argument&)) {
  return [kernel](const void* argument) { kernel(*static_cast<const Argument*>(argument)); };
}

template <typename T>
void add(std::map<std::string, Kernel>& all, const std::string& type) {
  const auto name = [&](const char* kernel, const char* rest) { return kernel + ("<" + type) + rest + ">"; };
  all[name("product", ", 1, false")] = of<Product>(product<T, 1, false>);
  all[name("product", ", 2, false")] = of<Product>(product<T, 2, false>);
  all[name("product", ", 4, false")] = of<Product>(product<T, 4, false>);
  all[name("product", ", 1, true")] = of<Product>(product<T, 1, true>);
  all[name("product", ", 4, true")] = of<Product>(product<T, 4, true>);
  all[name("product", ", 2, true")] = of<Product>(product<T, 2, true>);
  all[name("attend", ", 16, 1")] = of<Attend>(attend<T, 16, 1>);
  all[name("attend", ", 16, 2")] = of<Attend>(attend<T, 16, 2>);
  all[name("attend", ", 32, 4")] = of<Attend>(attend<T, 32, 4>);
  all[name("attend", ", 64, 8")] = of<Attend>(attend<T, 64, 8>);
  all[name("attend", ", 128, 2")] = of<Attend>(attend<T, 128, 2>);
  all[name("normalise", "")] = of<Rows>(normalise<T>);
  all[name("gate", "")] = of<Rows>(gate<T>);
  all[name("embed", "")] = of<Embed>(embed<T>);
  all[name("draw", "")] = of<Draw>(draw<T>);
}

} // namespace

void launch_emulated(const Launch& how, void* argument) {
  static std::mutex one_at_a_time;
  const std::lock_guard guard(one_at_a_time);
  static const auto kernels = [] {
    std::map<std::string, Kernel> all;
    add<float>(all, "float");
    add<Bf16>(all, "Bf16");
    return all;
  }();
  const auto kernel = kernels.find(how.instance);
  TORCH_CHECK(kernel != kernels.end(), how.instance, " is not emulated");
  static Block block;
  const std::function<void()> body = [&] { kernel->second(argument); };
  blockDim = {how.threads, 1, 1};
  for (unsigned z = 0; z < how.grid[2]; ++z) {
    for (unsigned y = 0; y < how.grid[1]; ++y) {
      for (unsigned x = 0; x < how.grid[0]; ++x) {
        blockIdx = {x, y, z};
        block.run(how.threads, how.shared, body);
      }
    }
  }
}

} // namespace millrace::cuda
