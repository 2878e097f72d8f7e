//! The prefix cache: which blocks of the KV cache have which tokens. Blocks form a tree: each
//! continues the tokens of its parent. So a request finds the blocks of its prefix, be it the next
//! turn of a rollout or another sample of a prompt. Unused blocks stay until their room is needed;
//! the least recently used go first.

use std::collections::{BTreeSet, HashMap};

use crate::decoder::BLOCK;
use crate::libtorch::common;

/// The parent of a first block.
const ROOT: u64 = 0;
/// Positions from which a copy pays off: fewer are computed as fast.
const LEAST_COPY: usize = 4;

/// The blocks.
#[derive(Debug)]
pub(super) struct Blocks {
    blocks: Vec<Block>,
    /// Blocks that the bound allows.
    most: usize,
    /// Blocks without content.
    free: Vec<usize>,
    /// Blocks with content that no request uses, by the time of their release. A parent is released
    /// after its children, so they are evicted first.
    idle: BTreeSet<(u64, usize)>,
    /// Blocks in use or idle, by the content that they continue.
    children: HashMap<u64, Vec<usize>>,
    /// Numbers contents and releases.
    clock: u64,
}

#[derive(Debug, Default)]
struct Block {
    /// Requests that use it.
    users: usize,
    /// Names the content, as long as it is there.
    content: u64,
    /// The content that it continues.
    parent: u64,
    /// What was computed into it, at most [`BLOCK`].
    tokens: Vec<u32>,
    /// When it was released.
    released: u64,
}

/// Blocks for a request's tokens.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// In the order of positions.
    pub(super) blocks: Vec<usize>,
    /// Positions that they cover, once the copy is made.
    pub(super) cached: usize,
    /// From which block to which so many positions are to be copied first.
    pub(super) copy: Option<(usize, usize, usize)>,
}

impl Blocks {
    /// At most so many blocks, 1 or more.
    pub(super) fn new(most: usize) -> Self {
        let (blocks, free, idle) = (Vec::new(), Vec::new(), BTreeSet::new());
        Self { blocks, most: most.max(1), free, idle, children: HashMap::new(), clock: ROOT }
    }

    /// Blocks that were ever needed at once: the cache must have as many.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that the bound allows.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Raises the bound for a request that alone needs more.
    pub(super) fn allow(&mut self, blocks: usize) {
        self.most = self.most.max(blocks);
    }

    /// Blocks that are free or can be evicted.
    pub(super) fn available(&self) -> usize {
        self.free.len() + self.idle.len() + (self.most - self.blocks.len())
    }

    /// Clears all blocks. No request may use any.
    pub(super) fn clear(&mut self) {
        for block in &mut self.blocks {
            *block = Block::default();
        }
        self.free = (0..self.blocks.len()).rev().collect();
        self.idle.clear();
        self.children.clear();
    }

    /// How many of `tokens` are cached: at most all but the last, which must be computed.
    pub(super) fn cached(&self, tokens: &[u32]) -> usize {
        let (whole, part) = self.find(tokens);
        whole.len() * BLOCK + part.map_or(0, |(_, part)| part)
    }

    /// The blocks that are full with a prefix of `tokens`, and the one that has most of what comes
    /// next.
    fn find(&self, tokens: &[u32]) -> (Vec<usize>, Option<(usize, usize)>) {
        let (mut whole, mut parent) = (Vec::new(), ROOT);
        loop {
            let rest = &tokens[whole.len() * BLOCK..tokens.len() - 1];
            let children = self.children.get(&parent).map_or(&[][..], Vec::as_slice);
            let common = |&block: &usize| (common(&self.blocks[block].tokens, rest), block);
            match children.iter().map(common).max() {
                Some((BLOCK, block)) => {
                    whole.push(block);
                    parent = self.blocks[block].content;
                }
                Some((part, block)) if part > 0 => return (whole, Some((block, part))),
                _ => return (whole, None),
            }
        }
    }

    /// Blocks for `tokens`, 1 or more, with their cached prefix; `None` if fewer than `spare` would
    /// be left.
    pub(super) fn take(&mut self, tokens: &[u32], spare: usize) -> Option<Found> {
        let (mut blocks, mut part) = self.find(tokens);
        let mut cached = blocks.len() * BLOCK;
        if let Some((block, common)) = part
            && self.blocks[block].users == 0
            && self.blocks[block].tokens.len() == common
        {
            // No other request could use more of it, so this one continues in place. So does a
            // rollout's next turn.
            blocks.push(block);
            cached += common;
            part = None;
        }
        let needed = tokens.len().div_ceil(BLOCK) - blocks.len();
        let revived = blocks.iter().filter(|&&block| self.blocks[block].users == 0).count();
        if self.available() < needed + revived + spare {
            return None;
        }
        for &block in &blocks {
            self.hold(block);
        }
        self.extend(&mut blocks, tokens.len());
        let copy = part.filter(|&(_, common)| common >= LEAST_COPY).map(|(from, common)| {
            let to = blocks[cached / BLOCK];
            // If `from` itself was evicted for `to`, its numbers are still there, and its tokens
            // are these.
            self.blocks[to].tokens = tokens[cached..cached + common].to_vec();
            cached += common;
            (from, to, common)
        });
        Some(Found { blocks, cached, copy })
    }

    /// Adds blocks until `blocks` have room for `positions`; `false` if there are too few.
    pub(super) fn extend(&mut self, blocks: &mut Vec<usize>, positions: usize) -> bool {
        while blocks.len() * BLOCK < positions {
            let parent = blocks.last().map_or(ROOT, |&block| self.blocks[block].content);
            let Some(block) = self.empty() else { return false };
            self.clock += 1;
            let content = self.clock;
            self.blocks[block] = Block { users: 1, content, parent, ..Block::default() };
            self.children.entry(parent).or_default().push(block);
            blocks.push(block);
        }
        true
    }

    /// `tokens` were computed into `blocks`, after `cached` positions.
    pub(super) fn fill(&mut self, blocks: &[usize], cached: usize, tokens: &[u32]) {
        for (index, &token) in tokens.iter().enumerate() {
            self.blocks[blocks[(cached + index) / BLOCK]].tokens.push(token);
        }
    }

    /// Releases the blocks of a request. Their content stays cached.
    pub(super) fn release(&mut self, blocks: &[usize]) {
        for &index in blocks.iter().rev() {
            self.clock += 1;
            let block = &mut self.blocks[index];
            block.users -= 1;
            block.released = self.clock;
            if block.users > 0 {
                continue;
            }
            if block.tokens.is_empty() {
                self.forget(index);
                self.free.push(index);
            } else {
                self.idle.insert((self.clock, index));
            }
        }
    }

    fn hold(&mut self, index: usize) {
        let block = &mut self.blocks[index];
        if block.users == 0 {
            self.idle.remove(&(block.released, index));
        }
        block.users += 1;
    }

    /// A block without content, if need be after an eviction.
    fn empty(&mut self) -> Option<usize> {
        if let Some(index) = self.free.pop() {
            return Some(index);
        }
        if self.blocks.len() < self.most {
            self.blocks.push(Block::default());
            return Some(self.blocks.len() - 1);
        }
        let (_, index) = self.idle.pop_first()?;
        self.forget(index);
        Some(index)
    }

    /// Takes a block's content out of the tree.
    fn forget(&mut self, index: usize) {
        let parent = self.blocks[index].parent;
        if let Some(children) = self.children.get_mut(&parent) {
            children.retain(|&child| child != index);
            if children.is_empty() {
                self.children.remove(&parent);
            }
        }
    }
}

#[cfg(test)]
mod tests;
