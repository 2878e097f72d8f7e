//! Tensors as C++ takes them, for all bridges.
#![expect(unreachable_pub, reason = "the macro makes what it declares public")]

#[cxx::bridge(namespace = "at")]
pub(crate) mod ffi {
    unsafe extern "C++" {
        include!("ATen/core/Tensor.h");

        type Tensor;
    }
}

/// A pointer that C++ takes for the tensor. It is used during the call only.
pub(crate) fn pointer(tensor: &tch::Tensor) -> *const ffi::Tensor {
    tensor.as_ptr().cast()
}

/// The same, and null for none.
pub(crate) fn pointer_if(tensor: Option<&tch::Tensor>) -> *const ffi::Tensor {
    tensor.map_or(std::ptr::null(), pointer)
}
