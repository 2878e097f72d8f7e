// One new token of each lane on CUDA. bridge.rs documents each call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "rust/cxx.h"

namespace millrace::cuda {

using at::Tensor;

// How a kernel is launched: an instance of one in rows.cu by name, and its argument.
struct Launch {
  std::string instance;
  // The argument's type in arguments.h.
  const char* argument;
  unsigned grid[3], threads;
  std::size_t shared;
};

// On the current stream of the device that the argument's pointers are of.
void launch_on_device(const Launch& launch, void* argument);
// The same source on this processor, for tensors that are not on a device.
void launch_emulated(const Launch& launch, void* argument);

void set_source(rust::Str arguments, rust::Str rows);
// Whether kernels can be launched: a GPU is there, and this build found CUDA's headers.
bool has_device();

void product(
    const at::Tensor* x,
    const at::Tensor* weight,
    const at::Tensor* bias,
    const at::Tensor* onto,
    const at::Tensor* norm,
    double epsilon,
    bool gated,
    const at::Tensor* out);

void attend(
    const at::Tensor* qkv,
    const at::Tensor* keys,
    const at::Tensor* values,
    const at::Tensor* rows,
    const at::Tensor* tables,
    const at::Tensor* query_norm,
    const at::Tensor* key_norm,
    double epsilon,
    const at::Tensor* cos,
    const at::Tensor* sin,
    std::int64_t heads,
    const at::Tensor* parts,
    const at::Tensor* done,
    const at::Tensor* out);

void normalise(const at::Tensor* x, const at::Tensor* weight, double epsilon, const at::Tensor* out);
void gate(const at::Tensor* both, const at::Tensor* out);
void embed(const at::Tensor* table, const at::Tensor* rows, const at::Tensor* out);
void draw(const at::Tensor* logits, const at::Tensor* rows, const at::Tensor* out);

} // namespace millrace::cuda
