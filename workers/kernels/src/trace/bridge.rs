//! The calls of C++ behind [`super`].
#![expect(unsafe_code, reason = "C++ is called")]
#![expect(unreachable_pub, reason = "the macro makes what it declares public")]

use std::path::Path;

#[cxx::bridge(namespace = "millrace::trace")]
mod ffi {
    unsafe extern "C++" {
        include!("millrace-kernels/src/trace/trace.h");

        fn begin() -> Result<()>;
        fn end(path: &str) -> Result<()>;
        fn cancel();
    }
}

/// Ends a trace whose computation panicked.
struct Open;

impl Drop for Open {
    fn drop(&mut self) {
        ffi::cancel();
    }
}

/// Runs `compute`, and writes to `path` which of libtorch's operators it ran, and which kernels on a GPU,
/// as JSON in Chrome's trace format, which Perfetto shows. On the calling thread, and what it makes
/// libtorch do on others. One trace at a time.
///
/// # Errors
/// The profiler does not start, or the file cannot be written; in words.
pub fn trace<T>(path: &Path, compute: impl FnOnce() -> T) -> Result<T, String> {
    let text = path.to_str().ok_or_else(|| format!("trace={} is not UTF-8", path.display()))?;
    // The profiler writes no file without a word where it cannot.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if folder.is_some_and(|folder| !folder.is_dir()) {
        return Err(format!("trace={text} is in a folder that does not exist"));
    }
    ffi::begin().map_err(|error| error.what().to_owned())?;
    let open = Open;
    let computed = compute();
    std::mem::forget(open);
    ffi::end(text).map_err(|error| error.what().to_owned())?;
    Ok(computed)
}
