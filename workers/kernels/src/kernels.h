// Attention to blocks of positions, products with packed weights, and the operations between them.
// bridge.rs documents each call.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace millrace::kernels {

using at::Tensor;

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
    const at::Tensor* out);

void multiply_rows(const at::Tensor* x, const at::Tensor* weight, const at::Tensor* out);

void normalise(const at::Tensor* x, const at::Tensor* weight, double epsilon, const at::Tensor* out);

void turn_heads(
    const at::Tensor* x,
    std::int64_t queries,
    const at::Tensor* query_norm,
    const at::Tensor* key_norm,
    double epsilon,
    const at::Tensor* cos,
    const at::Tensor* sin);

void gate(const at::Tensor* both, const at::Tensor* out);

// Limits vectors to this many numbers, in the whole process, from now on: for tests.
extern "C" void millrace_limit_lanes(std::int64_t most);

bool has_bf16_products();

at::Tensor* pack(const at::Tensor* weight, std::int64_t rows);

at::Tensor* multiply(
    const at::Tensor* x, const at::Tensor* weight, const at::Tensor* bias, const at::Tensor* onto);

} // namespace millrace::kernels
