//! A file as its changes against an anchor of the same length. Both are read as 16-bit words, little-endian.
//! Stored are the distances between changed words, and by how much each changed. One optimiser step moves few bf16
//! weights, and most of those to a neighbouring number, so that both are small numbers, which compress well.
//!
//! Content: `MRD1`, then as u64 little-endian the number of changed words and the bytes of the first of two zstd
//! frames. That frame has the distances, the second one the changes, both as LEB128; a change is a wrapping
//! difference of the words, its sign in the lowest bit. The reference of the file proves the result, so there is no
//! checksum here.

use std::io::{BufReader, Read};

/// The first bytes of a delta.
const MAGIC: &[u8; 4] = b"MRD1";
/// Magic, number of changes, bytes of the first frame.
const HEADER_BYTES: usize = 4 + 8 + 8;
/// A stronger level gains a few per cent and costs ten times as much.
const LEVEL: i32 = 3;
/// Words that are compared at once.
const STRIDE: usize = 4;

/// The most that a delta may be, as a divisor of the file: above a quarter, an anchor is the better trade.
const MAX_SHARE: usize = 4;
/// Of the words more may have changed, because small changes take much less than a word.
const MAX_CHANGED_SHARE: usize = 2;

/// Why a delta does not give its file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeltaError {
    /// It is no delta.
    #[error("it does not begin as a delta does")]
    Magic,
    /// It ends too early, or its frames are damaged.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// It changes what the anchor does not have.
    #[error("it changes word {at} of an anchor with words={words}")]
    Outside {
        /// The word.
        at: u64,
        /// The words of the anchor.
        words: u64,
    },
}

/// The delta that makes `target` out of `anchor`. `None` where it would not be worth its while: the lengths differ or
/// are odd, or too much changed.
#[must_use]
pub fn encode(anchor: &[u8], target: &[u8]) -> Option<Vec<u8>> {
    let delta = encode_up_to(anchor, target, anchor.len() / 2 / MAX_CHANGED_SHARE)?;
    (delta.len() <= target.len() / MAX_SHARE).then_some(delta)
}

/// As [`encode`], however large it becomes.
#[must_use]
pub fn encode_at_any_size(anchor: &[u8], target: &[u8]) -> Option<Vec<u8>> {
    encode_up_to(anchor, target, usize::MAX)
}

/// `None` if more than `most` words changed.
fn encode_up_to(anchor: &[u8], target: &[u8], most: usize) -> Option<Vec<u8>> {
    if anchor.len() != target.len() || !anchor.len().is_multiple_of(2) {
        return None;
    }
    let mut distances = Vec::new();
    let mut changes = Vec::new();
    let (mut changed, mut next) = (0, 0);
    let strides = anchor.chunks(2 * STRIDE).zip(target.chunks(2 * STRIDE));
    for (index, (before, after)) in strides.enumerate() {
        if before == after {
            continue;
        }
        let words = before.chunks_exact(2).zip(after.chunks_exact(2));
        for (offset, (before, after)) in words.enumerate() {
            let difference = word(after).wrapping_sub(word(before));
            if difference == 0 {
                continue;
            }
            let at = index * STRIDE + offset;
            push(&mut distances, (at - next) as u64);
            push(&mut changes, u64::from(zigzag(difference)));
            next = at + 1;
            changed += 1;
            if changed > most {
                return None;
            }
        }
    }
    let pack = |bytes: &[u8]| zstd::bulk::compress(bytes, LEVEL).expect("memory takes what it is given");
    let (distances, changes) = (pack(&distances), pack(&changes));
    let mut delta = Vec::with_capacity(HEADER_BYTES + distances.len() + changes.len());
    delta.extend_from_slice(MAGIC);
    delta.extend_from_slice(&(changed as u64).to_le_bytes());
    delta.extend_from_slice(&(distances.len() as u64).to_le_bytes());
    delta.extend_from_slice(&distances);
    delta.extend_from_slice(&changes);
    Some(delta)
}

/// Makes a file out of its anchor. Whether it is the one that was meant, its hash tells.
///
/// # Errors
/// `delta` is none, or is none of this anchor.
pub fn apply(anchor: &[u8], delta: &[u8]) -> Result<Vec<u8>, DeltaError> {
    let damaged = |what: &str| DeltaError::Damaged(what.to_owned());
    let rest = delta.strip_prefix(MAGIC).ok_or(DeltaError::Magic)?;
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
            return Err(DeltaError::Outside { at, words });
        }
        let bytes = &mut file[2 * at as usize..][..2];
        bytes.copy_from_slice(&word(bytes).wrapping_add(difference).to_le_bytes());
        at += 1;
    }
    Ok(file)
}

fn word(bytes: &[u8]) -> u16 {
    u16::from_le_bytes([bytes[0], bytes[1]])
}

/// A small difference, of either sign, as a small number.
const fn zigzag(difference: u16) -> u16 {
    let signed = difference as i16;
    ((signed << 1) ^ (signed >> 15)) as u16
}

const fn unzigzag(coded: u16) -> u16 {
    (coded >> 1) ^ (coded & 1).wrapping_neg()
}

fn push(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*number), rest))
}

/// The numbers of a frame, read as they are asked for: a frame that claims to be endless costs no memory.
struct Numbers<'a>(BufReader<zstd::Decoder<'a, BufReader<&'a [u8]>>>);

impl<'a> Numbers<'a> {
    fn of(frame: &'a [u8]) -> Result<Self, DeltaError> {
        let decoder = zstd::Decoder::new(frame).map_err(|e| DeltaError::Damaged(e.to_string()))?;
        Ok(Self(BufReader::with_capacity(1 << 16, decoder)))
    }

    fn next(&mut self) -> Result<u64, DeltaError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let mut byte = [0];
            self.0.read_exact(&mut byte).map_err(|e| DeltaError::Damaged(e.to_string()))?;
            value |= u64::from(byte[0] & 0x7f) << shift;
            if byte[0] < 0x80 {
                return Ok(value);
            }
        }
        Err(DeltaError::Damaged("a number has no end".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Deterministic numbers (xorshift).
    fn draw(seed: &mut u64) -> u64 {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        *seed
    }

    fn file(words: usize, mut seed: u64) -> Vec<u8> {
        (0..words).flat_map(|_| (draw(&mut seed) as u16).to_le_bytes()).collect()
    }

    /// Moves every `nth` word on average by `most` at most.
    fn moved(anchor: &[u8], nth: u64, most: u64, mut seed: u64) -> Vec<u8> {
        let mut target = anchor.to_vec();
        for bytes in target.chunks_exact_mut(2) {
            if draw(&mut seed).is_multiple_of(nth) {
                let by = (draw(&mut seed) % (2 * most + 1)) as u16;
                let moved = word(bytes).wrapping_add(by).wrapping_sub(most as u16);
                bytes.copy_from_slice(&moved.to_le_bytes());
            }
        }
        target
    }

    #[test]
    fn a_file_comes_back_as_it_was() {
        for words in [0, 1, 3, 4, 5, 63, 4_096, 100_001] {
            let anchor = file(words, 7);
            for (nth, most) in [(100, 1), (3, 1), (20, u64::from(u16::MAX) / 2), (1_000_000, 1)] {
                let target = moved(&anchor, nth, most, 11);
                let Some(delta) = encode(&anchor, &target) else {
                    assert!(words < 1_000, "words={words} nth={nth} most={most} is worth a delta");
                    continue;
                };
                assert_eq!(apply(&anchor, &delta).unwrap(), target, "words={words} nth={nth} most={most}");
            }
        }
    }

    #[test]
    fn every_difference_of_two_words_survives() {
        for difference in 0..=u16::MAX {
            assert_eq!(unzigzag(zigzag(difference)), difference);
        }
        assert_eq!([0, 1, u16::MAX, 2].map(zigzag), [0, 2, 1, 4]);
    }

    #[test]
    fn one_weight_in_a_hundred_moved_to_its_neighbour_takes_less_than_twelve_bits_each() {
        let anchor = file(1_000_000, 3);
        // Two moves in three are moves.
        let target = moved(&anchor, 67, 1, 5);
        let changed = anchor.chunks(2).zip(target.chunks(2)).filter(|(a, b)| a != b).count();
        let delta = encode(&anchor, &target).unwrap();
        assert!(changed > 5_000 && delta.len() * 8 < changed * 12, "{} bytes of {changed}", delta.len());
    }

    #[test]
    fn what_is_not_worth_a_delta_gets_none() {
        let anchor = file(10_000, 3);
        assert_eq!(encode(&anchor, &file(10_000, 4)), None, "everything changed");
        assert_eq!(encode(&anchor, &anchor[2..]), None, "another length");
        assert_eq!(encode(&anchor[1..], &anchor[1..]), None, "an odd length");
        assert_eq!(encode(&anchor, &moved(&anchor, 2, 30_000, 9)), None, "large changes");
    }

    #[test]
    fn a_damaged_delta_is_an_error_or_another_file_but_no_panic() {
        let anchor = file(5_000, 3);
        let target = moved(&anchor, 50, 1, 5);
        let delta = encode(&anchor, &target).unwrap();
        for end in 0..delta.len() {
            assert!(apply(&anchor, &delta[..end]).is_err(), "cut at {end}");
        }
        for at in 0..delta.len() {
            let mut bent = delta.clone();
            bent[at] ^= 0x55;
            let made = apply(&anchor, &bent);
            assert!(made.as_ref() != Ok(&target) || at < 12, "byte {at}");
        }
        assert!(matches!(apply(&anchor[..100], &delta), Err(DeltaError::Outside { .. })));
        assert_eq!(apply(&anchor, b"PK34"), Err(DeltaError::Magic));
    }

    #[test]
    fn a_frame_that_unpacks_without_end_is_not_unpacked() {
        let endless = zstd::bulk::compress(&vec![0xff; 1 << 26], LEVEL).unwrap();
        let mut delta = MAGIC.to_vec();
        delta.extend_from_slice(&u64::MAX.to_le_bytes());
        delta.extend_from_slice(&(endless.len() as u64).to_le_bytes());
        delta.extend_from_slice(&endless);
        delta.extend_from_slice(&endless);
        assert!(matches!(apply(&file(10, 1), &delta), Err(DeltaError::Damaged(_))));
    }
}
