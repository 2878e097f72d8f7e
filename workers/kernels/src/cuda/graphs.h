// What a process has of a GPU: its memory, two streams, and forwards that are captured once and replayed. graphs.rs documents
// each call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "rust/cxx.h"

namespace millrace::cuda {

using at::Tensor;

// Bytes of the device's memory that nobody uses, those that libtorch keeps for itself included.
std::size_t free_bytes();
void use_device(std::size_t number);

// Products of f32 on a device with 10 bits of mantissa, for the whole process.
void allow_tf32(bool allowed);

// While it lives, the calling thread's stream is the second one. Without a device it is nothing, as is to wait.
class OwnStream {
 public:
  OwnStream();
  ~OwnStream();

 private:
  struct Inside;
  std::unique_ptr<Inside> inside;
};

std::unique_ptr<OwnStream> own_stream();
void wait();

// Forwards that were captured, and the memory that they share.
class Graphs {
 public:
  Graphs();
  ~Graphs();
  void enter();
  void begin();
  std::size_t end();
  void cancel() noexcept;
  void replay(std::size_t which) const;
  void upload(const at::Tensor* to, rust::Slice<const std::int32_t> words);

 private:
  struct Inside;
  std::unique_ptr<Inside> inside;
};

std::unique_ptr<Graphs> make_graphs();

} // namespace millrace::cuda
