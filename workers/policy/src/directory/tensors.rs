//! The tensors of a directory: which file has which, checked against the shape of the model.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use millrace_schemas::file_name;
use millrace_schemas::limits::MAX_COMPANION_BYTES;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::Deserialize;

use super::files::{open_regular, read_own};
use super::numbers::{Chunk, Kind};
use super::{Fault, INDEX_FILE};
use crate::MODEL_FILE;
use crate::decoder::Layout;
use crate::output_layer::{EMBEDDING, HEAD};

/// Bytes of the longest header of a safetensors file that is read; its format allows no longer one.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Bytes that are read at once; a whole number of any element.
const CHUNK_BYTES: usize = 1 << 20;
/// The length of the header comes before it.
const LENGTH_BYTES: u64 = 8;

/// Location of one tensor.
#[derive(Debug, Clone)]
struct TensorLocation {
    file: usize,
    /// Its first byte in the file, and after its last.
    bytes: (u64, u64),
    shape: Vec<usize>,
    dtype: Dtype,
}

/// The open files, and the location of each tensor.
#[derive(Debug)]
pub(super) struct Tensors {
    files: Vec<(String, File)>,
    places: BTreeMap<String, TensorLocation>,
}

impl Tensors {
    /// Opens the files and checks that they have the tensors of `layout` and no others. `None`
    /// where no file could be opened.
    pub(super) fn open(
        path: &Path,
        layout: Option<&Layout>,
        tied: bool,
        faults: &mut Vec<Fault>,
    ) -> Option<Self> {
        let mut opened = Self { files: Vec::new(), places: BTreeMap::new() };
        let before = faults.len();
        match files_of(path) {
            Ok(named) => {
                for (file, tensors) in named {
                    if let Err(fault) = opened.add(path, &file, &tensors) {
                        faults.push(fault);
                    }
                }
            }
            Err(fault) => faults.push(fault),
        }
        // With a file missing, each of its tensors would be named, too.
        if let Some(layout) = layout.filter(|_| faults.len() == before) {
            opened.check(layout, tied, faults);
        }
        (!opened.files.is_empty()).then_some(opened)
    }

    /// Opens one file, which must have at least `expected`.
    fn add(&mut self, path: &Path, name: &str, expected: &BTreeSet<String>) -> Result<(), Fault> {
        let fault = |what: String| Fault::new(name, what);
        let file = file_name::file_in(path, name).map_err(|e| fault(e.to_string()))?;
        let file = open_regular(&file);
        let mut file = file.map_err(|e| fault(format!("failed to open it: {e}")))?;
        let places = read_header(&mut file, self.files.len()).map_err(fault)?;
        if let Some(tensor) = expected.iter().find(|tensor| !places.contains_key(*tensor)) {
            return Err(fault(format!("it has no tensor {tensor}, which {INDEX_FILE} lists")));
        }
        self.places.extend(places);
        self.files.push((name.to_owned(), file));
        Ok(())
    }

    fn check(&self, layout: &Layout, tied: bool, faults: &mut Vec<Fault>) {
        let known: BTreeSet<&str> = layout.parts.iter().map(|part| part.name.as_str()).collect();
        for part in &layout.parts {
            let Some(place) = self.places.get(&part.name) else {
                let file = self.files.first().map_or(MODEL_FILE, |(name, _)| name);
                faults.push(Fault::new(file, format!("there is no tensor {}", part.name)));
                continue;
            };
            let fits = place.shape.iter().map(|&n| n as i64).eq(part.shape.iter().copied());
            if !fits || Kind::of(place.dtype).is_none() {
                let (name, shape, dtype, expected) = (&part.name, &place.shape, place.dtype, &part.shape);
                faults.push(Fault::new(
                    self.name(place),
                    format!("{name} has shape={shape:?} dtype={dtype:?}; expected shape={expected:?} and F32, BF16 or F16"),
                ));
            }
        }
        for (name, place) in self.places.iter().filter(|(name, _)| !known.contains(name.as_str())) {
            let fault = |what: String| Fault::new(self.name(place), what);
            if tied && name == HEAD {
                // As written by tools that do not know of shared weights; it must be no weights of
                // its own.
                if !self.are_equal(HEAD, EMBEDDING) {
                    let why = "tie_word_embeddings=true in config.json";
                    faults.push(fault(format!("{HEAD} differs from {EMBEDDING}, but has {why}")));
                }
            } else if !name.ends_with("rotary_emb.inv_freq") {
                // The model would compute something else without it.
                faults.push(fault(format!("{name} is a tensor that such a model has not")));
            }
        }
    }

    fn name(&self, place: &TensorLocation) -> &str {
        &self.files[place.file].0
    }

    fn are_equal(&self, one: &str, other: &str) -> bool {
        let content = |name: &str| {
            let mut all = Vec::new();
            self.bytes(self.places.get(name)?, &mut |bytes| all.extend_from_slice(bytes)).ok()?;
            Some(all)
        };
        content(one).is_some_and(|held| content(other) == Some(held))
    }

    /// Reads a tensor of the layout, chunk by chunk.
    ///
    /// # Errors
    /// A number is not finite, or the file cannot be read.
    pub(super) fn read(&self, name: &str, take: &mut impl FnMut(Chunk<'_>)) -> Result<(), Fault> {
        let place = self.places.get(name).expect("the tensors of the layout were checked");
        let kind = Kind::of(place.dtype).expect("the kinds of the layout's tensors were checked");
        let mut finite = true;
        let read = self.bytes(place, &mut |bytes| {
            let chunk = Chunk { bytes, kind };
            finite &= chunk.is_finite();
            take(chunk);
        });
        read.map_err(|e| Fault::new(self.name(place), format!("failed to read {name}: {e}")))?;
        if finite {
            return Ok(());
        }
        Err(Fault::new(self.name(place), format!("{name} has a number that is not finite")))
    }

    fn bytes(&self, place: &TensorLocation, take: &mut impl FnMut(&[u8])) -> std::io::Result<()> {
        let mut file = &self.files[place.file].1;
        file.seek(SeekFrom::Start(place.bytes.0))?;
        let mut left = (place.bytes.1 - place.bytes.0) as usize;
        let mut chunk = vec![0; CHUNK_BYTES.min(left)];
        while left > 0 {
            let now = left.min(CHUNK_BYTES);
            file.read_exact(&mut chunk[..now])?;
            take(&chunk[..now]);
            left -= now;
        }
        Ok(())
    }
}

/// The files with the weights, and the tensors that an index lists for each.
fn files_of(path: &Path) -> Result<BTreeMap<String, BTreeSet<String>>, Fault> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    if path.join(MODEL_FILE).exists() {
        return Ok([(MODEL_FILE.to_owned(), BTreeSet::new())].into());
    }
    let fault = |what: String| Fault::new(INDEX_FILE, what);
    let text = read_own(path, INDEX_FILE, MAX_COMPANION_BYTES).map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            Fault::new(MODEL_FILE, format!("there is none, and no {INDEX_FILE}; weights must be safetensors"))
        }
        _ => fault(format!("failed to read it: {error}")),
    })?;
    let index: Index = serde_json::from_slice(&text).map_err(|e| fault(format!("it is no index: {e}")))?;
    let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (tensor, file) in index.weight_map {
        file_name::check(&file).map_err(|error| fault(format!("of {tensor}: {error}")))?;
        files.entry(file).or_default().insert(tensor);
    }
    if files.is_empty() { Err(fault("it names no tensor".to_owned())) } else { Ok(files) }
}

/// Reads the header of a safetensors file, and checks the file's length against it.
fn read_header(file: &mut File, index: usize) -> Result<BTreeMap<String, TensorLocation>, String> {
    let found = file.metadata().map_err(|e| e.to_string())?.len();
    let mut length = [0; LENGTH_BYTES as usize];
    let short = |_| format!("it has bytes={found}, too few for a safetensors file");
    file.read_exact(&mut length).map_err(short)?;
    let header = u64::from_le_bytes(length);
    if header > MAX_HEADER_BYTES {
        return Err(format!("it is no safetensors file: its header would have bytes={header}"));
    }
    if header.saturating_add(LENGTH_BYTES) > found {
        return Err(format!("it is cut short: bytes={found}, its header alone has bytes={header}"));
    }
    let mut text = vec![0; header as usize];
    file.read_exact(&mut text).map_err(|e| e.to_string())?;
    // Checks, too, that the tensors lie side by side and are as long as their shapes say.
    let metadata: Metadata =
        serde_json::from_slice(&text).map_err(|e| format!("it is no safetensors file: {e}"))?;
    let begin = LENGTH_BYTES + header;
    let place = |name: &String, info: &TensorInfo| {
        let (from, to) = info.data_offsets;
        let bytes = (begin + from as u64, begin + to as u64);
        (name.clone(), TensorLocation { file: index, bytes, shape: info.shape.clone(), dtype: info.dtype })
    };
    let places: BTreeMap<String, TensorLocation> =
        metadata.tensors().iter().map(|(name, info)| place(name, info)).collect();
    let expected = places.values().map(|place| place.bytes.1).max().unwrap_or(begin);
    if expected != found {
        return Err(format!("it is cut short or damaged: bytes={found}, its tensors need bytes={expected}"));
    }
    Ok(places)
}
