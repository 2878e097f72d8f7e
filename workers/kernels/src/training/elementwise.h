// One pass over tensors whose numbers are taken in words of 8 bytes: four of bf16, or two of f32. On CUDA
// libtorch's jiterator compiles the source for the device at run time; on a CPU the same source, compiled
// here, runs in tests.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/TensorIterator.h>

namespace millrace::training {

// A function of words: its name, its source with all that it calls, and the same for a CPU.
struct Pass {
  const char* name;
  std::string source;
  void (*on_cpu)(at::TensorIterator&);
};

// The result for words that are broadcast against one another. The jiterator takes up to 8 inputs.
at::Tensor compute(const Pass& pass, std::initializer_list<at::Tensor> words);

// Tensors `[.., width]` of bf16 or f32 as words. The last axis must be dense.
at::Tensor words(const at::Tensor& numbers);

// 0 and 1 of i64, as `[2, 1]`: tells which half of a row a word of the result is in.
at::Tensor halves(const at::Tensor& like);

template <auto Function, std::size_t... Input>
void run(at::TensorIterator& iterator, std::index_sequence<Input...>) {
  iterator.for_each([](char** data, const std::int64_t* strides, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      *reinterpret_cast<std::int64_t*>(data[0] + i * strides[0]) =
          Function(*reinterpret_cast<const std::int64_t*>(data[Input + 1] + i * strides[Input + 1])...);
    }
  });
}

template <auto Function, std::size_t Inputs>
void run(at::TensorIterator& iterator) {
  run<Function>(iterator, std::make_index_sequence<Inputs>());
}

} // namespace millrace::training

// Source that is compiled here and kept as text.
#define MILLRACE_SOURCE(text, ...) \
  __VA_ARGS__                      \
  const char* const text = #__VA_ARGS__;

// A pass by a function template of `inputs` words. Its source may call what `before` has.
#define MILLRACE_PASS(function, inputs, before, ...) \
  __VA_ARGS__                                        \
  const Pass& function##_pass() {                    \
    static const Pass pass{                            \
        #function, std::string(before) + " " + #__VA_ARGS__, &run<&function<std::int64_t>, inputs>}; \
    return pass;                                     \
  }

namespace millrace::training {
namespace {

// Words are taken apart without the types of either compiler. Rounding is to nearest even, as libtorch's.
MILLRACE_SOURCE(
    kWords,
    template <typename T> union MillraceWord {
      T whole;
      unsigned short half[4];
      float single[2];
    };
    template <typename T> inline MillraceWord<T> millrace_word(T whole) {
      MillraceWord<T> word;
      word.whole = whole;
      return word;
    } inline float millrace_wide(unsigned short half) {
      union {
        unsigned bits;
        float number;
      } wide;
      wide.bits = static_cast<unsigned>(half) << 16;
      return wide.number;
    } inline unsigned short millrace_half(float number) {
      union {
        float number;
        unsigned bits;
      } wide;
      wide.number = number;
      if ((wide.bits & 0x7fffffffu) > 0x7f800000u) {
        return static_cast<unsigned short>(0x7fc0u);
      }
      return static_cast<unsigned short>((wide.bits + 0x7fffu + ((wide.bits >> 16) & 1u)) >> 16);
    })

} // namespace
} // namespace millrace::training
