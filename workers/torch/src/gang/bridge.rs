//! The bridge to `c10d`, libtorch's collectives in C++. This file declares the interface, `bridge/`
//! has the C++ side. All calls that could break memory are in this file.
#![expect(unsafe_code, reason = "C++ is called, with tensors as pointers")]
#![expect(unreachable_pub, reason = "the macro makes what it declares public")]

use std::cell::Cell;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use cxx::{SharedPtr, UniquePtr};
use tch::Tensor;

use super::{GangError, RankAssignment};

#[cxx::bridge(namespace = "millrace::gang")]
mod ffi {
    extern "Rust" {
        type RendezvousKeys;
        fn set(self: &RendezvousKeys, key: &str, value: &[u8]) -> Result<()>;
        fn wait(self: &RendezvousKeys, key: &str, timeout_ms: u64) -> Result<Vec<u8>>;
        fn has(self: &RendezvousKeys, key: &str) -> Result<bool>;
    }

    unsafe extern "C++" {
        include!("millrace-torch/src/gang/bridge/bridge.h");

        #[namespace = "at"]
        type Tensor;

        type Pending;
        fn done(self: &Pending) -> bool;
        fn finish(self: Pin<&mut Pending>) -> Result<()>;

        type Group;
        fn gloo(
            keys: Box<RendezvousKeys>,
            listen: &str,
            interface: bool,
            rank: u32,
            world: u32,
            timeout_ms: u64,
        ) -> Result<SharedPtr<Group>>;
        fn has_nccl() -> bool;
        fn nccl(
            keys: Box<RendezvousKeys>,
            rank: u32,
            world: u32,
            timeout_ms: u64,
            device: u32,
        ) -> Result<SharedPtr<Group>>;
        fn close(self: &Group) -> Result<()>;
        unsafe fn all_reduce(self: &Group, tensor: *const Tensor) -> Result<UniquePtr<Pending>>;
        unsafe fn all_gather(
            self: &Group,
            output: *const Tensor,
            input: *const Tensor,
        ) -> Result<UniquePtr<Pending>>;
        unsafe fn broadcast(self: &Group, tensor: *const Tensor, root: u32) -> Result<UniquePtr<Pending>>;

        unsafe fn add_gradient_to(leaf: *const Tensor, gradient: *const Tensor) -> Result<()>;
        unsafe fn drop_gradient(leaf: *const Tensor);

        type Reducer;
        fn reducer(group: &SharedPtr<Group>, accumulate: bool) -> UniquePtr<Reducer>;
        unsafe fn add_bucket(
            self: Pin<&mut Reducer>,
            output: *const Tensor,
            input: *const Tensor,
        ) -> Result<()>;
        unsafe fn add_transient_bucket(
            self: Pin<&mut Reducer>,
            output: *const Tensor,
            length: i64,
        ) -> Result<()>;
        unsafe fn add_leaf(self: Pin<&mut Reducer>, leaf: *const Tensor) -> Result<()>;
        fn add_leaf_by_hand(self: Pin<&mut Reducer>) -> Result<()>;
        fn filled(self: Pin<&mut Reducer>, bucket: u32) -> Result<()>;
        fn arm(self: Pin<&mut Reducer>);
        fn started(self: &Reducer) -> u32;
        fn start_rest(self: Pin<&mut Reducer>) -> Result<()>;
        fn take(self: Pin<&mut Reducer>, bucket: u32) -> Result<UniquePtr<Pending>>;
    }
}

// SAFETY: a process group may be used and dropped from any thread; it is locked within.
unsafe impl Send for ffi::Group {}
// SAFETY: as above. Its methods only start collectives, and one thread at a time calls them:
// [`Connections`] is neither cloned nor `Sync`, and the reducer that it makes, which is not `Send`,
// stays with the thread that has it.
unsafe impl Sync for ffi::Group {}
// SAFETY: a work is shared with c10d's own threads as it is.
unsafe impl Send for ffi::Pending {}

/// A pointer that C++ takes for the tensor. It is read during the call only; what stays keeps the
/// tensor's storage by a reference of its own.
fn pointer(tensor: &Tensor) -> *const ffi::Tensor {
    tensor.as_ptr().cast()
}

/// The rendezvous, with the interface that C++ calls.
#[derive(Debug)]
struct RendezvousKeys(RankAssignment);

impl RendezvousKeys {
    /// A key of this formation, with characters that every store takes.
    fn key(&self, key: &str) -> String {
        let plain =
            |sign: char| if sign.is_ascii_alphanumeric() || "-/_".contains(sign) { sign } else { '_' };
        format!("{}/{}", self.0.gang, key.chars().map(plain).collect::<String>())
    }

    fn set(&self, key: &str, value: &[u8]) -> Result<(), GangError> {
        self.0.rendezvous.set(&self.key(key), value)
    }

    fn wait(&self, key: &str, timeout_ms: u64) -> Result<Vec<u8>, GangError> {
        let deadline = Instant::now() + Duration::from_millis(timeout_ms);
        self.0.rendezvous.wait(&self.key(key), deadline, &self.0.cancel)
    }

    fn has(&self, key: &str) -> Result<bool, GangError> {
        Ok(self.0.rendezvous.get(&self.key(key))?.is_some())
    }
}

/// What C++ threw: its first line, since libtorch appends a stack.
fn lost(error: &cxx::Exception) -> GangError {
    GangError::Lost(error.what().lines().next().unwrap_or("no message").to_owned())
}

fn milliseconds(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// Where a member listens to the other members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// At an address or a host name.
    Address(String),
    /// At the address of an interface, `eth0` for example.
    Interface(String),
}

/// A formation's connections. One thread at a time owns them and shares them with no other.
pub(super) struct Connections(SharedPtr<ffi::Group>, PhantomData<Cell<()>>);

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connections")
    }
}

impl Connections {
    const fn of(group: SharedPtr<ffi::Group>) -> Self {
        Self(group, PhantomData)
    }

    /// Connects the members over Gloo, for tensors on the CPU. Blocks until all are there.
    pub(super) fn gloo(assignment: &RankAssignment, listen: &Listen) -> Result<Self, GangError> {
        let (place, interface) = match listen {
            Listen::Address(address) => (address, false),
            Listen::Interface(name) => (name, true),
        };
        let keys = Box::new(RendezvousKeys(assignment.clone()));
        let timeout = milliseconds(assignment.timeout);
        ffi::gloo(keys, place, interface, assignment.rank, assignment.world, timeout)
            .map(Self::of)
            .map_err(|e| lost(&e))
    }

    /// Connects the members over NCCL, for tensors on GPUs.
    pub(super) fn nccl(assignment: &RankAssignment, device: usize) -> Result<Self, GangError> {
        let keys = Box::new(RendezvousKeys(assignment.clone()));
        let timeout = milliseconds(assignment.timeout);
        let (rank, world, device) = (assignment.rank, assignment.world, device as u32);
        ffi::nccl(keys, rank, world, timeout, device).map(Self::of).map_err(|e| lost(&e))
    }

    /// Whether this build has NCCL.
    pub(super) fn has_nccl() -> bool {
        ffi::has_nccl()
    }

    /// Closes the connections, even during a collective. The other members notice at once.
    pub(super) fn close(&self) {
        if let Err(error) = self.0.close() {
            tracing::debug!(error = error.what(), "a gang's connections did not close");
        }
    }

    pub(super) fn all_reduce(&self, tensor: &Tensor) -> Result<Work, GangError> {
        // SAFETY: `pointer` holds for the call.
        Work::of(unsafe { self.0.all_reduce(pointer(tensor)) })
    }

    pub(super) fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<Work, GangError> {
        // SAFETY: `pointer` holds for the call.
        Work::of(unsafe { self.0.all_gather(pointer(output), pointer(input)) })
    }

    pub(super) fn broadcast(&self, tensor: &Tensor, root: u32) -> Result<Work, GangError> {
        // SAFETY: `pointer` holds for the call.
        Work::of(unsafe { self.0.broadcast(pointer(tensor), root) })
    }

    pub(super) fn reducer(&self, accumulate: bool) -> Reducer {
        Reducer(ffi::reducer(&self.0, accumulate))
    }
}

/// A collective under way. It keeps its tensors alive, also when this is dropped first.
pub(crate) struct Work(UniquePtr<ffi::Pending>);

impl Work {
    fn of(started: Result<UniquePtr<ffi::Pending>, cxx::Exception>) -> Result<Self, GangError> {
        started.map(Self).map_err(|error| lost(&error))
    }

    /// Whether [`Self::finish`] would not wait.
    pub(super) fn done(&self) -> bool {
        self.0.done()
    }

    /// Waits for the end.
    pub(super) fn finish(mut self) -> Result<(), GangError> {
        self.0.pin_mut().finish().map_err(|error| lost(&error))
    }
}

/// Makes backward add the gradient of `leaf` to `gradient`, which has the same number of elements.
///
/// # Panics
/// The shapes do not fit.
pub(crate) fn add_gradient_to(leaf: &Tensor, gradient: &Tensor) {
    // SAFETY: `pointer` holds for the call.
    unsafe { ffi::add_gradient_to(pointer(leaf), pointer(gradient)) }
        .expect("a gradient has its leaf's shape");
}

/// Takes the gradient of `leaf` away, and with it its memory.
pub(crate) fn drop_gradient(leaf: &Tensor) {
    // SAFETY: `pointer` holds for the call.
    unsafe { ffi::drop_gradient(pointer(leaf)) }
}

/// Starts the reduction of each bucket of gradients as soon as backward has filled it.
pub(crate) struct Reducer(UniquePtr<ffi::Reducer>);

impl std::fmt::Debug for Reducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reducer {{ started: {} }}", self.0.started())
    }
}

impl Reducer {
    /// Adds a bucket, the next to be reduced: `input` `[world * n]` is added up over the members,
    /// and this member's `n` come to `output`.
    pub(crate) fn add_bucket(&mut self, output: &Tensor, input: &Tensor) {
        // SAFETY: `pointer` holds for the call.
        unsafe { self.0.pin_mut().add_bucket(pointer(output), pointer(input)) }
            .expect("two tensors make a bucket");
    }

    /// Adds a bucket whose input `[length]` is made when backward computes the first gradient in it,
    /// and is freed with its reduction. Its leaves lie in it one after another.
    pub(crate) fn add_transient_bucket(&mut self, output: &Tensor, length: i64) {
        // SAFETY: `pointer` holds for the call.
        unsafe { self.0.pin_mut().add_transient_bucket(pointer(output), length) }
            .expect("a transient bucket has elements");
    }

    /// Adds a leaf whose gradient is in the last bucket and is filled by backward.
    pub(crate) fn add_leaf(&mut self, leaf: &Tensor) {
        // SAFETY: `pointer` holds for the call.
        unsafe { self.0.pin_mut().add_leaf(pointer(leaf)) }.expect("a leaf takes a hook");
    }

    /// Adds a leaf whose gradient is in the last bucket and is reported by [`Self::filled`].
    pub(crate) fn add_leaf_by_hand(&mut self) {
        self.0.pin_mut().add_leaf_by_hand().expect("a leaf lies in a bucket");
    }

    /// A leaf by hand in this bucket has its gradient. Does nothing before [`Self::arm`].
    pub(crate) fn filled(&mut self, bucket: u32) {
        self.0.pin_mut().filled(bucket).expect("the bucket was added");
    }

    /// The next backward is the last before an update.
    pub(crate) fn arm(&mut self) {
        self.0.pin_mut().arm();
    }

    /// Buckets whose reduction has begun since [`Self::arm`].
    pub(crate) fn started(&self) -> u32 {
        self.0.started()
    }

    /// Starts what backward has not filled.
    pub(crate) fn start_rest(&mut self) -> Result<(), GangError> {
        self.0.pin_mut().start_rest().map_err(|error| lost(&error))
    }

    /// The reduction of a bucket.
    pub(crate) fn take(&mut self, bucket: u32) -> Result<Work, GangError> {
        Work::of(self.0.pin_mut().take(bucket))
    }
}

#[cfg(test)]
mod tests;
