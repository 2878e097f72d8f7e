// What a train step computes otherwise on CUDA than with libtorch's own operators. bridge.rs documents each
// call.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "rust/cxx.h"

namespace millrace::training {

using at::Tensor;

at::Tensor* attend_sequences(
    const at::Tensor* q,
    const at::Tensor* k,
    const at::Tensor* v,
    const at::Tensor* query_starts,
    const at::Tensor* key_starts,
    std::int64_t most_queries,
    std::int64_t most_keys);

at::Tensor* gate(const at::Tensor* both);

at::Tensor* turn_heads(
    const at::Tensor* x, const at::Tensor* norm, double epsilon, const at::Tensor* cos, const at::Tensor* sin);

at::Tensor* exponential_sums(const at::Tensor* logits, const at::Tensor* largest, double inverse_temperature);

at::Tensor* logits_gradient(const at::Tensor* logits, const at::Tensor* rows);

void adamw(
    const at::Tensor* weights,
    const at::Tensor* gradient,
    const at::Tensor* first,
    const at::Tensor* second,
    rust::Slice<const std::int64_t> ranges,
    double step,
    double rate,
    double beta1,
    double beta2,
    double weight_decay,
    double epsilon);

} // namespace millrace::training
