//! Settings of the allocator, for libtorch.

/// Lets the allocator keep freed memory. Each operation puts its result in new memory. With glibc's
/// defaults the larger ones are mapped and unmapped every time, and a third of an engine's time
/// goes into fresh pages.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "there is no safe binding; the call has no conditions to uphold")]
pub(super) fn keep() {
    /// Bytes above which memory is mapped on its own; glibc takes no more than this.
    const MAPPED: libc::c_int = 32 << 20;
    /// Bytes at the end of the heap that are kept though free.
    const KEPT: libc::c_int = 1 << 30;
    // SAFETY: mallopt takes numbers and may be called at any time from any thread.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
    }
}

/// Other allocators are left as they are.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn keep() {}
