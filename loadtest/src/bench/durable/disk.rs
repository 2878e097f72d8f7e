//! The bound: records written to a file in order, and nothing else.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes after which a file begins from its start, so that a fast disk is not filled.
const MOST_BYTES: u64 = 2 << 30;

/// Records a second, of `bytes` each, in a file of `folder`. `sync`: each is on the disk before the
/// next is written.
///
/// # Errors
/// The file cannot be written.
pub(super) fn records_per_s(folder: &Path, bytes: usize, sync: bool, time: Duration) -> anyhow::Result<f64> {
    let path = folder.join("records");
    let (record, mut file) = (vec![7; bytes], File::create(&path)?);
    let (mut written, mut count) = (0, 0_u64);
    let since = Instant::now();
    while since.elapsed() < time {
        if written > MOST_BYTES {
            file = File::create(&path)?;
            written = 0;
        }
        file.write_all(&record)?;
        if sync {
            file.sync_data()?;
        }
        written += bytes as u64;
        count += 1;
    }
    let took = since.elapsed().as_secs_f64();
    std::fs::remove_file(&path)?;
    Ok(count as f64 / took)
}
