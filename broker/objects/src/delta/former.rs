//! What former versions wrote: `MRD1`, then as u64 little-endian the number of changed words and the bytes of the
//! first of two zstd frames. That frame has the distances between changed words, whatever their class, the second
//! one the changes.

use super::{DeltaError, Numbers, damaged, unzigzag, word};

/// The first bytes of such a delta.
pub(super) const MAGIC: &[u8; 4] = b"MRD1";

/// Makes a file out of its anchor and what is behind the first bytes.
pub(super) fn apply(anchor: &[u8], rest: &[u8]) -> Result<Vec<u8>, DeltaError> {
    let (changed, rest) = number(rest).ok_or_else(|| damaged("it has no number of changes"))?;
    let (length, frames) = number(rest).ok_or_else(|| damaged("it has no length"))?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let (distances, changes) = frames.split_at_checked(length).ok_or_else(|| damaged("it ends too early"))?;
    let (mut distances, mut changes) = (Numbers::of(distances)?, Numbers::of(changes)?);
    let words = anchor.len() as u64 / 2;
    let mut file = anchor.to_vec();
    let mut at = 0_u64;
    for _ in 0..changed {
        at = at.saturating_add(distances.next()?);
        let difference = unzigzag(changes.next()? as u16);
        if at >= words {
            return Err(DeltaError::Outside { words });
        }
        let bytes = &mut file[2 * at as usize..][..2];
        bytes.copy_from_slice(&word(bytes).wrapping_add(difference).to_le_bytes());
        at += 1;
    }
    Ok(file)
}

fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*number), rest))
}
