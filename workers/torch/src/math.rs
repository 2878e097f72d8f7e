//! The formulas of training, one to a file, each with its source. Tensors come in any float kind
//! and shape; whatever goes over tokens is multiplied by a mask before it is added up.

pub mod advantage;
pub mod aggregate;
pub mod correction;
pub mod drift;
pub mod entropy;
pub mod kl;
pub mod policy_loss;
pub mod ratio;
pub mod spans;
pub mod value_loss;
