//! The output layer of a model that ties it to the embedding, as a file of its own.
//!
//! vLLM on a CPU keeps a packed copy of the output layer beside its weights. Its reload packs a layer
//! again where the files have a tensor of its name. A tied model's files have none for the output
//! layer, so this copy would stay that of the version that the server started with.

use std::collections::{BTreeMap, HashMap};

use safetensors::SafeTensors;

use crate::PolicyError;

/// Where a version has its output layer twice. After `model.safetensors` in alphabetical order, and
/// the only other file of that kind.
pub const OUTPUT_LAYER_FILE: &str = "output_layer.safetensors";
/// The output layer.
pub(crate) const HEAD: &str = "lm_head.weight";
/// The embedding.
pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";

/// The content of [`OUTPUT_LAYER_FILE`]: the embedding of `model`, a whole safetensors file, under
/// the output layer's name. `None` where the model has that tensor already, or no embedding.
///
/// # Errors
/// `model` is no safetensors file.
pub fn untied(model: &[u8]) -> Result<Option<Vec<u8>>, PolicyError> {
    let fail = |error| PolicyError::Impossible(format!("failed to read the weights: {error}"));
    let tensors = SafeTensors::deserialize(model).map_err(fail)?;
    let (Ok(embedding), Err(_)) = (tensors.tensor(EMBEDDING), tensors.tensor(HEAD)) else {
        return Ok(None);
    };
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize(BTreeMap::from([(HEAD, embedding)]), Some(metadata)).map(Some).map_err(fail)
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::{Dtype, TensorView};

    use super::*;

    fn model(names: &[&str]) -> Vec<u8> {
        let bytes: Vec<u8> = (0..16).collect();
        let view = || TensorView::new(Dtype::BF16, vec![4, 2], &bytes).unwrap();
        let tensors: BTreeMap<&str, _> = names.iter().map(|name| (*name, view())).collect();
        safetensors::serialize(tensors, None).unwrap()
    }

    #[test]
    fn the_embedding_is_also_the_output_layer() {
        let made = untied(&model(&[EMBEDDING, "model.norm.weight"])).unwrap().expect("it is tied");
        let made = SafeTensors::deserialize(&made).unwrap();
        assert_eq!(made.names(), [HEAD]);
        let head = made.tensor(HEAD).unwrap();
        assert_eq!((head.dtype(), head.shape()), (Dtype::BF16, &[4, 2][..]));
        assert_eq!(head.data(), (0..16).collect::<Vec<u8>>());
    }

    #[test]
    fn an_output_layer_of_its_own_is_left_alone() {
        assert_eq!(untied(&model(&[EMBEDDING, HEAD])).unwrap(), None);
        assert_eq!(untied(&model(&["other"])).unwrap(), None);
        assert!(untied(b"no such file").is_err());
    }
}
