// Where the CUDA runtime is that libtorch loaded, and what lies beside it.
#pragma once

#include <dlfcn.h>

#include <string>

#include <c10/util/Exception.h>

namespace millrace::cuda {

// Its folder, with a slash; empty if none is loaded.
std::string runtime_folder();

// Loads the other half of the run-time compiler NVRTC, which that opens by name alone: in the wheel nothing leads there. Where
// it is not found the compiler may know of another, or says itself what it lacks.
void load_builtins();

// A function of a library by its name, for libraries that this is not linked with; RTLD_DEFAULT has what libtorch loaded.
template <typename Function>
Function* symbol(void* library, const char* name) {
  void* found = dlsym(library, name);
  TORCH_CHECK(found != nullptr, "no ", name, " in its library");
  return reinterpret_cast<Function*>(found);
}

} // namespace millrace::cuda
