//! The formulas of training, one to a file, each with its source. Tensors come in any float kind and shape;
//! whatever goes over tokens is multiplied by a mask before it is added up.

pub mod advantage;
#[cfg(feature = "torch")]
pub mod aggregate;
#[cfg(feature = "torch")]
pub mod drift;
#[cfg(feature = "torch")]
pub mod entropy;
#[cfg(feature = "torch")]
pub mod kl;
#[cfg(feature = "torch")]
pub mod policy_loss;
#[cfg(feature = "torch")]
pub mod ratio;
