//! Steps of one new token a lane on a GPU, captured once for each number of lanes and replayed: what a step launches costs no
//! time of the host.

use std::collections::BTreeMap;

use millrace_kernels::cuda::{Graphs, ROW_WORDS, StepRow};
use tch::{Device, Kind, Tensor};

use crate::decoder::{BLOCK, Decoder, KvCache, Lane, StepInputs};
use crate::gpu_kernels;
use crate::sampling::{Draw, Drawn, draw, uniform};

mod check;

/// Numbers of lanes for which a step is captured; fewer lanes are padded to the next number. Padding costs
/// little, and few graphs are needed.
const LANES: [usize; 12] = [1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256];
/// Above the last of these, the number of lanes is rounded up to a multiple of this.
const MORE_LANES: usize = 128;
/// Blocks of a captured table at least.
const LEAST_TABLE: usize = 32;

/// Captured steps of one engine.
#[derive(Debug)]
pub(super) struct Steps {
    /// `None` where nothing is captured: on a CPU, in tests.
    graphs: Option<Graphs>,
    device: Device,
    /// By lanes and blocks of a table.
    known: BTreeMap<(usize, usize), Step>,
    /// Of so many lanes: steps come one after another. `[lanes, vocabulary]`
    logits: BTreeMap<usize, Tensor>,
    /// Rows and tables of a step, one after another. `[N]` of i32
    inputs: Tensor,
}

#[derive(Debug)]
struct Step {
    graph: usize,
    inputs: StepInputs,
    /// `[lanes, vocabulary]`
    logits: Tensor,
    /// A token and its log-probability's bits. `[lanes, 2]` of i32
    drawn: Tensor,
}

/// The number of lanes that a step of `lanes` is captured for.
fn padded(lanes: usize) -> usize {
    LANES.into_iter().find(|&most| most >= lanes).unwrap_or_else(|| lanes.next_multiple_of(MORE_LANES))
}

impl Steps {
    /// Steps of `decoder`, if they compute what its general forward does on this device.
    pub(super) fn checked(decoder: &Decoder, device: Device) -> Option<Self> {
        let mut steps = Self::new(device);
        let right = gpu_kernels::are_right("sampling", device, || check::steps(&mut steps, decoder, decoder));
        // What was captured is of a cache that is gone.
        steps.clear();
        right.then_some(steps)
    }

    pub(super) fn new(device: Device) -> Self {
        let graphs = device.is_cuda().then(Graphs::new);
        let inputs = Tensor::empty([0], (Kind::Int, device));
        Self { graphs, device, known: BTreeMap::new(), logits: BTreeMap::new(), inputs }
    }

    /// Forgets all that was captured: weights or cache are elsewhere now.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.device);
    }

    /// One token more for lanes of one new token each.
    pub(super) fn forward(
        &mut self,
        decoder: &Decoder,
        cache: &KvCache,
        lanes: &[Lane<'_>],
        draws: &[Draw],
    ) -> Vec<Drawn> {
        let rows = padded(lanes.len());
        let blocks = lanes.iter().map(|lane| lane.cached / BLOCK + 1).max().unwrap_or(1);
        let table = blocks.next_power_of_two().max(LEAST_TABLE);
        let words = words(lanes, draws, [rows, table], cache.spare());
        if self.inputs.numel() < words.len() {
            self.clear();
            self.inputs = Tensor::zeros([2 * words.len() as i64], (Kind::Int, self.device));
        }
        match &mut self.graphs {
            Some(graphs) => graphs.upload(&self.inputs, &words),
            None => self.inputs.narrow(0, 0, words.len() as i64).copy_(&Tensor::from_slice(&words)),
        }
        if !self.known.contains_key(&(rows, table)) {
            let step = self.capture(decoder, cache, [rows, table]);
            self.known.insert((rows, table), step);
        }
        let step = &self.known[&(rows, table)];
        match &self.graphs {
            Some(graphs) => graphs.replay(step.graph),
            None => step.run(decoder, cache),
        }
        let count = lanes.len() as i64;
        if draws.iter().any(Draw::cuts) {
            return draw(&step.logits.narrow(0, 0, count), draws);
        }
        let drawn = step.drawn.narrow(0, 0, count).reshape([-1]);
        let drawn = Vec::<i32>::try_from(&drawn).expect("one axis of i32");
        let one = |pair: &[i32]| {
            let logprob = f32::from_bits(pair[1].cast_unsigned());
            Drawn { token: pair[0].cast_unsigned(), logprob, uncut_logprob: logprob }
        };
        drawn.chunks_exact(2).map(one).collect()
    }

    fn capture(&mut self, decoder: &Decoder, cache: &KvCache, [rows, table]: [usize; 2]) -> Step {
        let part = |from: usize, count: usize, width: usize| {
            let words = self.inputs.narrow(0, from as i64, (count * width) as i64);
            words.view([count as i64, width as i64])
        };
        let inputs =
            StepInputs::new(decoder.config(), part(0, rows, ROW_WORDS), part(rows * ROW_WORDS, rows, table));
        let drawn = Tensor::zeros([rows as i64, 2], (Kind::Int, self.device));
        let make = || {
            Tensor::empty([rows as i64, decoder.config().vocab_size], (decoder.flat().kind(), self.device))
        };
        let logits = self.logits.entry(rows).or_insert_with(make).shallow_clone();
        let mut step = Step { graph: 0, inputs, logits, drawn };
        if let Some(graphs) = &mut self.graphs {
            step.graph = graphs.capture(|| step.run(decoder, cache));
        }
        step
    }
}

impl Step {
    fn run(&self, decoder: &Decoder, cache: &KvCache) {
        let logits = decoder.step(&self.inputs, cache);
        millrace_kernels::cuda::draw(&logits, &self.inputs.rows, &self.drawn);
        self.logits.shallow_clone().copy_(&logits);
    }
}

/// What a step reads: a row for each lane, then their tables. Rows beyond the lanes read and write the `spare` block.
fn words(lanes: &[Lane<'_>], draws: &[Draw], [rows, table]: [usize; 2], spare: usize) -> Vec<i32> {
    let mut words = Vec::with_capacity(rows * (ROW_WORDS + table));
    for (lane, draw) in lanes.iter().zip(draws) {
        let position = lane.cached;
        let row = StepRow {
            token: lane.tokens[0],
            position,
            cell: lane.blocks[position / BLOCK] * BLOCK + position % BLOCK,
            length: position + 1,
            below: draw.below.unwrap_or(u32::MAX),
            temperature: draw.temperature as f32,
            random: uniform(draw.seed, draw.position),
        };
        words.extend(row.words());
    }
    let padding = StepRow {
        token: 0,
        position: 0,
        cell: spare * BLOCK,
        length: 1,
        below: u32::MAX,
        temperature: 0.0,
        random: 0.0,
    };
    (lanes.len()..rows).for_each(|_| words.extend(padding.words()));
    let block = |block: usize| i32::try_from(block).expect("a block's number fits 31 bits");
    for lane in lanes {
        let seen = &lane.blocks[..lane.blocks.len().min(table)];
        words.extend(seen.iter().map(|&one| block(one)));
        words.resize(words.len() + table - seen.len(), 0);
    }
    words.resize(words.len() + (rows - lanes.len()) * table, block(spare));
    words
}
