//! What a process has of a GPU: its memory, two streams, and forwards that are captured once and replayed. The
//! calls of C++; all of them that could break memory are in this file.
#![expect(unsafe_code, reason = "C++ is called, with tensors as pointers")]
#![expect(unreachable_pub, reason = "the macro makes what it declares public")]

use std::fmt;

use cxx::UniquePtr;
use tch::{Kind, Tensor};

use crate::tensors::pointer;

#[cxx::bridge(namespace = "millrace::cuda")]
mod ffi {
    unsafe extern "C++" {
        include!("millrace-kernels/src/cuda/graphs.h");

        #[namespace = "at"]
        type Tensor = crate::tensors::ffi::Tensor;
        type Graphs;
        type OwnStream;

        fn free_bytes() -> Result<usize>;
        fn use_device(number: usize) -> Result<()>;
        fn allow_tf32(allowed: bool) -> Result<()>;
        fn own_stream() -> Result<UniquePtr<OwnStream>>;
        fn wait() -> Result<()>;

        fn make_graphs() -> Result<UniquePtr<Graphs>>;
        fn enter(self: Pin<&mut Graphs>) -> Result<()>;
        fn begin(self: Pin<&mut Graphs>) -> Result<()>;
        fn end(self: Pin<&mut Graphs>) -> Result<usize>;
        fn cancel(self: Pin<&mut Graphs>);
        fn replay(self: &Graphs, which: usize) -> Result<()>;
        unsafe fn upload(self: Pin<&mut Graphs>, to: *const Tensor, words: &[i32]) -> Result<()>;
    }
}

/// Bytes of the device's memory that are free, with those that libtorch keeps for later; `None` where that is not known.
pub fn free_bytes() -> Option<usize> {
    ffi::free_bytes().ok().filter(|&bytes| bytes > 0)
}

/// Has the calling thread use this device, by its number from 0.
///
/// # Errors
/// There is no such device, in words.
pub fn use_device(number: usize) -> Result<(), String> {
    ffi::use_device(number).map_err(|error| error.what().to_owned())
}

/// Whether libtorch multiplies f32 on a GPU as TF32, 10 bits of mantissa, in this process.
///
/// # Panics
/// Never: it is a setting.
pub fn allow_tf32(allowed: bool) {
    ffi::allow_tf32(allowed).expect("a setting");
}

/// While it lives, what the calling thread gives to the device goes to a second stream, beside what
/// others give to the first. Dropped on the same thread. Without a device it is nothing.
pub struct OwnStream(#[expect(dead_code, reason = "it is there to be dropped")] UniquePtr<ffi::OwnStream>);

impl OwnStream {
    /// Begins it.
    ///
    /// # Panics
    /// The device failed.
    #[must_use]
    pub fn enter() -> Self {
        Self(ffi::own_stream().expect("a device has streams"))
    }
}

/// Waits until the device, if there is one, has done what the calling thread gave to its stream.
///
/// # Panics
/// The device failed.
pub fn wait() {
    ffi::wait().expect("the device does what it was given");
}

/// Forwards that were captured on a device, and the memory that they share. Replays come one after another.
pub struct Graphs(UniquePtr<ffi::Graphs>);

impl fmt::Debug for Graphs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graphs").finish_non_exhaustive()
    }
}

/// Ends a capture that a panic broke off.
struct Capture<'a>(&'a mut UniquePtr<ffi::Graphs>);

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        self.0.pin_mut().cancel();
    }
}

impl Graphs {
    /// None yet.
    ///
    /// # Panics
    /// There is no device.
    #[must_use]
    pub fn new() -> Self {
        Self(ffi::make_graphs().expect("a device that captures"))
    }

    /// Captures what `compute` launches and returns its number. `compute` runs twice: libtorch makes what it needs the first time,
    /// and what it launches the second time is captured, not run.
    ///
    /// # Panics
    /// `compute` launches what cannot be captured.
    pub fn capture(&mut self, compute: impl Fn()) -> usize {
        let capture = Capture(&mut self.0);
        capture.0.pin_mut().enter().expect("a stream of its own");
        compute();
        capture.0.pin_mut().begin().expect("nothing else is captured");
        compute();
        capture.0.pin_mut().end().expect("all that was launched can be captured")
    }

    /// Runs a captured forward again, on what is in its inputs now.
    ///
    /// # Panics
    /// The device failed.
    pub fn replay(&self, which: usize) {
        self.0.replay(which).expect("the device runs what was captured");
    }

    /// Copies words to the beginning of `to` `[N]` of i32, without waiting for it. What waits for a later result waits for this.
    ///
    /// # Panics
    /// The device failed.
    pub fn upload(&mut self, to: &Tensor, words: &[i32]) {
        assert_eq!(to.kind(), Kind::Int, "words are i32");
        // SAFETY: the pointer holds for the call; the size is checked on the other side.
        unsafe { self.0.pin_mut().upload(pointer(to), words) }.expect("room for the words");
    }
}

impl Default for Graphs {
    fn default() -> Self {
        Self::new()
    }
}
