//! A file as its changes against an anchor of the same length. Both are read as 16-bit words, little-endian. One
//! optimiser step moves few bf16 weights, most of those to a neighbouring number, and which ones is a matter of
//! their size: a step moves what is small, and by much. So words are told apart by bits 7 to 14 of the anchor's,
//! which are a bf16's exponent, and each such class has its own distances between changed words and its own changes:
//! small numbers, which are alike and compress well.
//!
//! Content: `MRD2`, then for each 2^23 words in turn: the bytes of two zstd frames, u32 little-endian each, and the
//! frames. Both are empty where nothing changed. The first frame has 256 numbers of changes, one a class, then the
//! distances, class by class: words of that class between one that changed and the one before. The second frame has
//! the changes in the same order. All are LEB128; a change is a wrapping difference of the words, its sign in the
//! lowest bit. The reference of the file proves the result, so there is no checksum here. `MRD1` is what former
//! versions wrote: see `delta/former.rs`.

use std::io::{BufReader, Read};

use rayon::prelude::*;

mod former;

/// The first bytes of a delta.
const MAGIC: &[u8; 4] = b"MRD2";
/// What has frames of its own, so that several processors can work.
const SEGMENT_BYTES: usize = 2 << 23;
/// Classes of words.
const CLASSES: usize = 256;
/// A stronger level gains a few per cent and costs ten times as much.
const LEVEL: i32 = 3;
/// Words that are compared at once.
const STRIDE: usize = 8;
/// No word of a class changes any more. No segment has as many words.
const NEVER: u32 = u32::MAX;

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
    #[error("it changes more than an anchor with words={words} has")]
    Outside {
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
    let segments = match anchor.len() {
        0 => Vec::new(),
        // To ask another thread costs more than it saves.
        1..=SEGMENT_BYTES => vec![encode_segment(anchor, target, most)?],
        _ => {
            let pairs = anchor.par_chunks(SEGMENT_BYTES).zip(target.par_chunks(SEGMENT_BYTES));
            pairs.map(|(before, after)| encode_segment(before, after, most)).collect::<Option<Vec<_>>>()?
        }
    };
    if segments.iter().map(|(changed, _)| changed).sum::<usize>() > most {
        return None;
    }
    let mut delta = MAGIC.to_vec();
    for (_, frames) in segments {
        for frame in &frames {
            let length = u32::try_from(frame.len()).expect("a segment is some MiB");
            delta.extend_from_slice(&length.to_le_bytes());
        }
        frames.iter().for_each(|frame| delta.extend_from_slice(frame));
    }
    Some(delta)
}

/// What is known of a class while a segment is encoded.
#[derive(Default)]
struct Class {
    /// Words of it so far.
    seen: u32,
    /// Those up to the last that changed, with that one.
    next: u32,
    changed: u64,
    distances: Vec<u8>,
    changes: Vec<u8>,
}

/// The number of changed words, and both frames. `None` if there are more than `most`.
fn encode_segment(anchor: &[u8], target: &[u8], most: usize) -> Option<(usize, [Vec<u8>; 2])> {
    let changed = changed_words(anchor, target, most)?;
    if changed.is_empty() {
        return Some((0, Default::default()));
    }
    let at = |index: u32| class(word(&anchor[2 * index as usize..]));
    let mut live = Live::default();
    changed.iter().for_each(|(index, _)| live.0[at(*index)] = true);
    let mut classes: Vec<Class> = (0..CLASSES).map(|_| Class::default()).collect();
    let mut coming = changed.iter().copied().peekable();
    for (stride, words) in anchor.chunks(2 * STRIDE).enumerate().filter(|(_, words)| live.any(words)) {
        for (offset, bytes) in words.chunks_exact(2).enumerate() {
            let class = &mut classes[class(word(bytes))];
            let index = (stride * STRIDE + offset) as u32;
            if let Some((_, difference)) = coming.next_if(|(at, _)| *at == index) {
                push(&mut class.distances, u64::from(class.seen - class.next));
                push(&mut class.changes, u64::from(zigzag(difference)));
                class.next = class.seen + 1;
                class.changed += 1;
            }
            class.seen += 1;
        }
    }
    let (mut distances, mut changes) = (Vec::new(), Vec::new());
    classes.iter().for_each(|class| push(&mut distances, class.changed));
    for class in classes {
        distances.extend(class.distances);
        changes.extend(class.changes);
    }
    Some((changed.len(), [pack(&distances), pack(&changes)]))
}

/// Where words differ, and by how much. `None` if more than `most` do.
fn changed_words(anchor: &[u8], target: &[u8], most: usize) -> Option<Vec<(u32, u16)>> {
    let mut changed = Vec::new();
    for (stride, (before, after)) in anchor.chunks(2 * STRIDE).zip(target.chunks(2 * STRIDE)).enumerate() {
        if before == after {
            continue;
        }
        let words = before.chunks_exact(2).zip(after.chunks_exact(2)).enumerate();
        let differences = words.map(|(at, (before, after))| (at, word(after).wrapping_sub(word(before))));
        let differing = differences.filter(|(_, difference)| *difference != 0);
        changed.extend(differing.map(|(at, difference)| ((stride * STRIDE + at) as u32, difference)));
        if changed.len() > most {
            return None;
        }
    }
    Some(changed)
}

/// Classes of which words change: most words are of others, and are passed over by strides.
struct Live([bool; CLASSES]);

impl Default for Live {
    fn default() -> Self {
        Self([false; CLASSES])
    }
}

impl Live {
    fn any(&self, words: &[u8]) -> bool {
        words.chunks_exact(2).fold(false, |any, bytes| any | self.0[class(word(bytes))])
    }
}

fn pack(bytes: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(bytes, LEVEL).expect("memory takes what it is given")
}

/// Makes a file out of its anchor. Whether it is the one that was meant, its hash tells.
///
/// # Errors
/// `delta` is none, or is none of this anchor.
pub fn apply(anchor: &[u8], delta: &[u8]) -> Result<Vec<u8>, DeltaError> {
    if let Some(rest) = delta.strip_prefix(former::MAGIC) {
        return former::apply(anchor, rest);
    }
    let mut rest = delta.strip_prefix(MAGIC).ok_or(DeltaError::Magic)?;
    let mut file = anchor.to_vec();
    let mut segments = Vec::new();
    for words in file.chunks_mut(SEGMENT_BYTES) {
        let frames = frames(&mut rest).ok_or_else(|| damaged("it ends too early"))?;
        segments.push((words, frames));
    }
    if !rest.is_empty() {
        return Err(DeltaError::Outside { words: anchor.len() as u64 / 2 });
    }
    if segments.len() == 1 {
        segments.into_iter().try_for_each(|(words, frames)| apply_segment(words, frames))?;
    } else {
        segments.into_par_iter().try_for_each(|(words, frames)| apply_segment(words, frames))?;
    }
    Ok(file)
}

/// Takes the two frames of a segment.
fn frames<'d>(rest: &mut &'d [u8]) -> Option<[&'d [u8]; 2]> {
    let lengths = [length(rest)?, length(rest)?];
    let mut take = |length| {
        let (frame, behind) = rest.split_at_checked(length)?;
        *rest = behind;
        Some(frame)
    };
    Some([take(lengths[0])?, take(lengths[1])?])
}

fn length(rest: &mut &[u8]) -> Option<usize> {
    let (length, behind) = rest.split_first_chunk()?;
    *rest = behind;
    usize::try_from(u32::from_le_bytes(*length)).ok()
}

/// What of a class is still to come while a segment is made.
#[derive(Clone, Copy)]
struct Coming {
    /// Words of it until the next change, or [`NEVER`].
    left: u32,
    /// Where its changes are.
    at: usize,
    end: usize,
}

fn apply_segment(file: &mut [u8], [distances, changes]: [&[u8]; 2]) -> Result<(), DeltaError> {
    if distances.is_empty() && changes.is_empty() {
        return Ok(());
    }
    let words = file.len() / 2;
    let (mut distances, mut changes) = (Numbers::of(distances)?, Numbers::of(changes)?);
    let mut counts = [0; CLASSES];
    for count in &mut counts {
        *count = usize::try_from(distances.next()?).unwrap_or(usize::MAX);
    }
    let all = counts.iter().fold(0_usize, |all, count| all.saturating_add(*count));
    if all > words {
        return Err(DeltaError::Outside { words: words as u64 });
    }
    let mut coming = [Coming { left: NEVER, at: 0, end: 0 }; CLASSES];
    let mut steps: Vec<(u32, u16)> = Vec::with_capacity(all);
    for (class, count) in coming.iter_mut().zip(counts) {
        (class.at, class.end) = (steps.len(), steps.len() + count);
        for _ in 0..count {
            let distance = u32::try_from(distances.next()?).ok().filter(|distance| *distance != NEVER);
            let distance = distance.ok_or_else(|| damaged("a distance is longer than any segment"))?;
            steps.push((distance, unzigzag(changes.next()? as u16)));
        }
        class.left = steps.get(class.at).filter(|_| count > 0).map_or(NEVER, |(distance, _)| *distance);
    }
    let mut live = Live(coming.map(|class| class.left != NEVER));
    for stride in file.chunks_mut(2 * STRIDE) {
        if !live.any(stride) {
            continue;
        }
        for bytes in stride.chunks_exact_mut(2) {
            let of = class(word(bytes));
            let class = &mut coming[of];
            match class.left {
                NEVER => {}
                0 => {
                    bytes.copy_from_slice(&word(bytes).wrapping_add(steps[class.at].1).to_le_bytes());
                    class.at += 1;
                    live.0[of] = class.at < class.end;
                    class.left = if live.0[of] { steps[class.at].0 } else { NEVER };
                }
                left => class.left = left - 1,
            }
        }
    }
    let done = coming.iter().all(|class| class.left == NEVER);
    if done { Ok(()) } else { Err(DeltaError::Outside { words: words as u64 }) }
}

fn damaged(what: &str) -> DeltaError {
    DeltaError::Damaged(what.to_owned())
}

/// Of a bf16 its exponent.
const fn class(word: u16) -> usize {
    (word >> 7 & 0xff) as usize
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
mod tests;
