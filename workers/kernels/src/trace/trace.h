// What libtorch and the device do between two calls of one thread. trace.rs documents each call.
#pragma once

#include "rust/cxx.h"

namespace millrace::trace {

void begin();
void end(rust::Str path);
void cancel() noexcept;

} // namespace millrace::trace
