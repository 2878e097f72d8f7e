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

/// Weights in bf16 of which each power of two below 1 has half as many as the next.
fn weights(words: usize, mut seed: u64) -> Vec<u8> {
    let weight = |_| {
        let exponent = 126 - draw(&mut seed).trailing_zeros() as u16;
        let (sign, fraction) = (draw(&mut seed) as u16 & 0x8000, draw(&mut seed) as u16 & 0x7f);
        (sign | exponent << 7 | fraction).to_le_bytes()
    };
    (0..words).flat_map(weight).collect()
}

/// What a step does that adds as much to each weight, up or down.
fn stepped(anchor: &[u8], by: f32, mut seed: u64) -> Vec<u8> {
    let step = |bytes: &[u8]| {
        let weight = f32::from_bits(u32::from(word(bytes)) << 16);
        let moved = weight + by * (draw(&mut seed) % 2_001) as f32 / 1_000.0 - by;
        // To the nearest.
        ((moved.to_bits() + 0x8000) >> 16) as u16
    };
    anchor.chunks_exact(2).map(step).flat_map(u16::to_le_bytes).collect()
}

fn changed(anchor: &[u8], target: &[u8]) -> usize {
    anchor.chunks(2).zip(target.chunks(2)).filter(|(before, after)| before != after).count()
}

#[test]
fn what_a_step_moves_takes_less_than_ten_bits_a_change() {
    let anchor = weights(2_000_000, 3);
    let target = stepped(&anchor, 3e-5, 5);
    let (changed, delta) = (changed(&anchor, &target), encode(&anchor, &target).unwrap());
    assert_eq!(apply(&anchor, &delta).unwrap(), target);
    let share = changed as f64 / 2e6;
    assert!((0.005..0.02).contains(&share), "{share}");
    assert!(delta.len() * 8 < changed * 10, "{} bytes of {changed}", delta.len());
}

#[test]
fn one_weight_in_a_hundred_moved_to_its_neighbour_takes_less_than_twelve_bits_each() {
    let anchor = weights(1_000_000, 3);
    // Two moves in three are moves.
    let target = moved(&anchor, 67, 1, 5);
    let (changed, delta) = (changed(&anchor, &target), encode(&anchor, &target).unwrap());
    assert!(changed > 5_000 && delta.len() * 8 < changed * 12, "{} bytes of {changed}", delta.len());
}

#[test]
fn a_file_of_several_segments_comes_back_and_one_without_changes_takes_none() {
    let anchor = file(SEGMENT_BYTES + 5, 7);
    assert_eq!(encode(&anchor, &anchor).unwrap(), [&MAGIC[..], &[0; 24]].concat());
    let mut target = anchor.clone();
    for at in [0, SEGMENT_BYTES - 1, 2 * SEGMENT_BYTES, 2 * SEGMENT_BYTES + 9] {
        target[at] ^= 0x5a;
    }
    let delta = encode(&anchor, &target).unwrap();
    assert!(delta.len() < 2_000, "{} bytes", delta.len());
    assert_eq!(apply(&anchor, &delta).unwrap(), target);
    assert!(apply(&anchor[..SEGMENT_BYTES], &delta).is_err(), "an anchor with fewer segments");
}

#[test]
fn what_former_versions_wrote_is_read() {
    // Eight words of which the first is one more, the third two less and the last another altogether.
    let distances = zstd::bulk::compress(&[0, 1, 4], LEVEL).unwrap();
    let changes = zstd::bulk::compress(&[2, 3, 0xfe, 0xff, 0x03], LEVEL).unwrap();
    let length = (distances.len() as u64).to_le_bytes();
    let delta = [&b"MRD1"[..], &3_u64.to_le_bytes(), &length, &distances, &changes].concat();
    let anchor: Vec<u8> = (10..18_u16).flat_map(u16::to_le_bytes).collect();
    let words = [11, 11, 10, 13, 14, 15, 16, 17_u16.wrapping_add(0x7fff)];
    let target: Vec<u8> = words.into_iter().flat_map(u16::to_le_bytes).collect();
    assert_eq!(apply(&anchor, &delta).unwrap(), target);
    assert_eq!(apply(&anchor[..14], &delta), Err(DeltaError::Outside { words: 7 }));
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
    assert_eq!(apply(&anchor[..100], &delta), Err(DeltaError::Outside { words: 50 }));
    assert_eq!(apply(&file(5_000, 9), &delta).unwrap_err(), DeltaError::Outside { words: 5_000 });
    assert_eq!(apply(&anchor, &[&delta[..], &[0; 8]].concat()), Err(DeltaError::Outside { words: 5_000 }));
    assert_eq!(apply(&anchor, b"PK34"), Err(DeltaError::Magic));
}

#[test]
fn a_frame_that_unpacks_without_end_is_not_unpacked() {
    let endless = zstd::bulk::compress(&vec![0xff; 1 << 26], LEVEL).unwrap();
    let length = (endless.len() as u32).to_le_bytes();
    let delta = [&MAGIC[..], &length, &length, &endless, &endless].concat();
    assert!(matches!(apply(&file(10, 1), &delta), Err(DeltaError::Damaged(_))));
    // As many changes as can be said, and more than there are words.
    let many = zstd::bulk::compress(&vec![0x7f; 1 << 26], LEVEL).unwrap();
    let length = (many.len() as u32).to_le_bytes();
    let delta = [&MAGIC[..], &length, &length, &many, &many].concat();
    assert_eq!(apply(&file(10, 1), &delta), Err(DeltaError::Outside { words: 10 }));
}
