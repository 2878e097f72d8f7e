// Attention to blocks of positions, and products with packed weights. What each call means is said in ../kernels.rs.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace millrace::kernels {

using at::Tensor;

void attend_rows(
    const at::Tensor* q,
    const at::Tensor* keys,
    const at::Tensor* values,
    const at::Tensor* tables,
    const at::Tensor* lengths,
    std::int64_t block,
    std::int64_t heads,
    const at::Tensor* out);

void multiply_rows(const at::Tensor* x, const at::Tensor* weight, const at::Tensor* out);

at::Tensor* pack(const at::Tensor* weight, std::int64_t rows);

at::Tensor* multiply(const at::Tensor* x, const at::Tensor* weight, const at::Tensor* bias);

} // namespace millrace::kernels
