//! Tensors to and from safetensors, checked: names, shapes, kind, and that every number is finite.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use safetensors::tensor::{Dtype, SafeTensors, View};
use tch::{Device, Kind, Tensor};

use super::{Layout, Part};

/// Why a file is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// Not a safetensors file.
    #[error("failed to read {file}: {why}")]
    Format {
        /// The file.
        file: String,
        /// The reader's error.
        why: safetensors::SafeTensorError,
    },
    /// A tensor is not there.
    #[error("{file} has no tensor {tensor}")]
    Missing {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
    },
    /// A tensor is of another shape or kind.
    #[error(
        "{file} has {tensor} of shape={shape:?} dtype={dtype:?}; expected shape={expected:?} and a float"
    )]
    Shape {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Its kind.
        dtype: Dtype,
        /// The shape that the model has.
        expected: Vec<i64>,
    },
    /// A tensor holds NaN or infinity.
    #[error("{file} has a number in {tensor} that is not finite")]
    NotFinite {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
    },
}

/// Reads the parts of `layout` into one flat buffer `[layout.len]` of f32 on the CPU. `prefix`
/// comes before each name in the file. 16-bit floats are widened.
///
/// # Errors
/// The file is not safetensors, or a tensor is missing, of another shape, or not finite.
pub fn read_tensors(file: &str, bytes: &[u8], prefix: &str, layout: &Layout) -> Result<Tensor, FilesError> {
    read_tensors_to(file, bytes, prefix, layout, (Kind::Float, Device::Cpu))
}

/// The same into numbers of another kind, on another device: those that are stored as they are
/// wanted are only copied.
///
/// # Errors
/// As above.
pub fn read_tensors_to(
    file: &str,
    bytes: &[u8],
    prefix: &str,
    layout: &Layout,
    (wanted, device): (Kind, Device),
) -> Result<Tensor, FilesError> {
    let tensors =
        SafeTensors::deserialize(bytes).map_err(|why| FilesError::Format { file: file.to_owned(), why })?;
    let flat = Tensor::empty([layout.len], (wanted, device));
    let mut finite = Vec::with_capacity(layout.parts.len());
    for part in &layout.parts {
        let name = format!("{prefix}{}", part.name);
        let Ok(view) = tensors.tensor(&name) else {
            return Err(FilesError::Missing { file: file.to_owned(), tensor: name });
        };
        let same = view.shape().iter().map(|&n| n as i64).eq(part.shape.iter().copied());
        let kind = match view.dtype() {
            Dtype::F32 if same => Kind::Float,
            Dtype::BF16 if same => Kind::BFloat16,
            Dtype::F16 if same => Kind::Half,
            dtype => {
                let (shape, expected) = (view.shape().to_vec(), part.shape.clone());
                return Err(FilesError::Shape {
                    file: file.to_owned(),
                    tensor: name,
                    shape,
                    dtype,
                    expected,
                });
            }
        };
        let read = Tensor::from_data_size(view.data(), &[part.len()], kind).to_device(device).to_kind(wanted);
        finite.push(read.isfinite().all());
        flat.narrow(0, part.offset, part.len()).copy_(&read);
    }
    // By one transfer from the device.
    let finite = Vec::<bool>::try_from(Tensor::stack(&finite, 0)).expect("one axis of booleans");
    match layout.parts.iter().zip(finite).find(|(_, finite)| !finite) {
        Some((part, _)) => {
            Err(FilesError::NotFinite { file: file.to_owned(), tensor: format!("{prefix}{}", part.name) })
        }
        None => Ok(flat),
    }
}

/// Writes flat buffers `[layout.len]` of f32 or bf16, each in its own kind and under its prefix,
/// and one word of metadata under its key. The same numbers give the same bytes. (More than one key
/// would not: the header has them in a map's order.)
///
/// # Panics
/// Never: shapes and lengths come from `layout`.
#[must_use]
pub fn write_tensors(layout: &Layout, buffers: &[(&str, &Tensor)], metadata: (&str, &str)) -> Vec<u8> {
    let views = buffers.iter().flat_map(|(prefix, flat)| {
        let flat = flat.to_device(Device::Cpu);
        layout.parts.iter().map(move |part| (format!("{prefix}{}", part.name), Numbers::of(&flat, part)))
    });
    let metadata = HashMap::from([(metadata.0.to_owned(), metadata.1.to_owned())]);
    let views: BTreeMap<String, Numbers> = views.collect();
    safetensors::serialize(views, Some(metadata)).expect("shapes and lengths come from the layout")
}

/// One tensor on its way into a file.
struct Numbers {
    dtype: Dtype,
    shape: Vec<usize>,
    /// On the CPU.
    numbers: Tensor,
}

impl Numbers {
    fn of(flat: &Tensor, part: &Part) -> Self {
        let dtype = match flat.kind() {
            Kind::BFloat16 => Dtype::BF16,
            kind => {
                assert!(kind == Kind::Float, "weights are f32 or bf16, not {kind:?}");
                Dtype::F32
            }
        };
        let shape = part.shape.iter().map(|&n| usize::try_from(n).expect("an axis has a length")).collect();
        Self { dtype, shape, numbers: flat.narrow(0, part.offset, part.len()) }
    }
}

impl View for Numbers {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Copied only when it is written: a copy of all would be one more of the model.
    fn data(&self) -> Cow<'_, [u8]> {
        let mut bytes = vec![0; self.data_len()];
        self.numbers.copy_data_u8(&mut bytes, self.numbers.numel());
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        self.numbers.numel() * self.numbers.kind().elt_size_in_bytes()
    }
}
