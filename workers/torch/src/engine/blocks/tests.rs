use super::*;

fn sequence(length: u32, seed: u32) -> Vec<u32> {
    (0..length).map(|i| i * 7 + seed).collect()
}

/// Takes blocks for tokens and computes them all.
fn computed(blocks: &mut Blocks, tokens: &[u32]) -> Found {
    let found = blocks.take(tokens, 0).expect("there is room");
    blocks.fill(&found.blocks, found.cached, &tokens[found.cached..]);
    found
}

#[test]
fn samples_of_a_prompt_share_its_whole_blocks_and_copy_the_rest() {
    let mut blocks = Blocks::new(100);
    let prompt = sequence(40, 1);
    let first = computed(&mut blocks, &prompt);
    assert_eq!((first.blocks.len(), first.cached, first.copy), (3, 0, None));
    let second = computed(&mut blocks, &prompt);
    assert_eq!(second.blocks[..2], first.blocks[..2]);
    // All but the last token, which is computed for each.
    assert_eq!((second.cached, second.copy), (39, Some((first.blocks[2], second.blocks[2], 7))));
    assert_eq!(blocks.len(), 4);
    // A prompt that goes another way after 20 tokens.
    let mut other = prompt.clone();
    other[20] = 1000;
    let third = computed(&mut blocks, &other);
    assert_eq!((third.cached, third.blocks[0]), (20, first.blocks[0]));
    assert_eq!(third.copy, Some((first.blocks[1], third.blocks[1], 4)));
}

#[test]
fn unused_blocks_stay_cached_until_the_least_recently_used_is_evicted() {
    let mut blocks = Blocks::new(6);
    for seed in [1000, 2000, 3000] {
        let found = computed(&mut blocks, &sequence(32, seed));
        blocks.release(&found.blocks);
    }
    assert_eq!((blocks.len(), blocks.available()), (6, 6));
    // The second is used again, so the first is the oldest; of a sequence its end goes first.
    let again = computed(&mut blocks, &sequence(33, 2000));
    assert_eq!(again.cached, 32);
    assert_eq!(blocks.cached(&sequence(33, 1000)), 16);
    blocks.release(&again.blocks);
    let fourth = computed(&mut blocks, &sequence(48, 4000));
    assert_eq!(blocks.cached(&sequence(33, 1000)), 0);
    assert_eq!(blocks.cached(&sequence(33, 3000)), 0, "two of its blocks were needed");
    assert_eq!(blocks.cached(&sequence(34, 2000)), 33);
    assert_eq!(blocks.take(&sequence(64, 5000), 0), None, "three are in use");
    blocks.release(&fourth.blocks);
}

#[test]
fn every_block_is_in_use_or_idle_or_free_and_none_twice() {
    let mut blocks = Blocks::new(20);
    let mut random = millrace_policy::random::Stream::new(5);
    let mut hands: Vec<Vec<usize>> = Vec::new();
    for _ in 0..5_000 {
        if random.below(2) == 0 || hands.len() > 6 {
            if !hands.is_empty() {
                let hand = hands.swap_remove(random.below(hands.len() as u64) as usize);
                blocks.release(&hand);
            }
        } else {
            let mut tokens = sequence(60, 100 * random.below(4) as u32);
            tokens.truncate(1 + random.below(60) as usize);
            if let Some(found) = blocks.take(&tokens, 0) {
                // Some are released before they were computed.
                if random.below(4) > 0 {
                    blocks.fill(&found.blocks, found.cached, &tokens[found.cached..]);
                }
                hands.push(found.blocks);
            }
        }
        let mut users = vec![0; blocks.len()];
        hands.iter().flatten().for_each(|&block| users[block] += 1);
        for (index, block) in blocks.blocks.iter().enumerate() {
            assert_eq!(block.users, users[index]);
            let idle = blocks.idle.contains(&(block.released, index));
            let free = blocks.free.contains(&index);
            assert_eq!(usize::from(block.users > 0) + usize::from(idle) + usize::from(free), 1, "{index}");
            let listed = blocks.children.get(&block.parent).is_some_and(|all| all.contains(&index));
            assert_eq!(listed, !free, "{index}");
            assert!(block.tokens.len() <= BLOCK);
        }
        assert!(blocks.len() <= 20 && blocks.children.len() <= 20);
    }
}
