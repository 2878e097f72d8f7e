// What rows.cu needs on a device. Compiled before it.

#define UNROLL _Pragma("unroll")
#define DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#define INFINITY __int_as_float(0x7f800000)

namespace millrace::cuda {

// Waits until the kernel before this one has ended and what it wrote is seen: with programmatic dependent launch a kernel
// starts before that.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start, once all blocks of this one have said so.
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// 16 bytes that no kernel writes and nobody reads again soon.
__device__ inline uint4 load_once(const uint4* from) {
  uint4 out;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
               : "l"(from));
  return out;
}

}  // namespace millrace::cuda
