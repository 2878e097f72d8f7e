//! What an image is pushed from.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result};
use flate2::read::MultiGzDecoder;

use super::oci::{self, Layout};
use super::{Image, pack};

/// The file by which an OCI layout is known.
const LAYOUT: &str = "oci-layout";
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

pub(super) fn read(source: &Path) -> Result<Image> {
    if source.join(LAYOUT).is_file() {
        return oci::image(&Layout::Folder(source.to_owned()));
    }
    if source.is_dir() {
        return Ok(Image { layers: vec![pack::folder(source)?], env: BTreeMap::new() });
    }
    let bytes = std::fs::read(source)?;
    if bytes.starts_with(&ZSTD) {
        // A layout is never within zstd.
        return Ok(Image { layers: vec![bytes], env: BTreeMap::new() });
    }
    match layout(source, bytes.starts_with(&GZIP)).context("it is no tar")? {
        Some(layout) => oci::image(&layout),
        None => Ok(Image { layers: vec![bytes], env: BTreeMap::new() }),
    }
}

/// The files of a tar that is an OCI layout.
fn layout(source: &Path, is_gzip: bool) -> Result<Option<Layout>> {
    let file = BufReader::new(File::open(source)?);
    let input: Box<dyn Read> = if is_gzip { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    let mut files = BTreeMap::new();
    let mut is_layout = false;
    let mut archive = tar::Archive::new(input);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.to_string_lossy().trim_start_matches("./").to_owned();
        is_layout |= path == LAYOUT;
        if path == "index.json" || path.starts_with("blobs/") {
            let mut content = Vec::new();
            entry.read_to_end(&mut content)?;
            files.insert(path, content);
        }
    }
    // To the very end, so that what is cut is seen.
    std::io::copy(&mut archive.into_inner(), &mut std::io::sink())?;
    Ok(is_layout.then_some(Layout::Files(files)))
}
