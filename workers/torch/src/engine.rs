//! Samples turns by continuous batching: requests join and leave between steps. Each step is one
//! forward over the new tokens of all of them, and over a bounded part of the contexts to prefill.
//! The KV cache consists of blocks under a bound of memory. Requests with a common prefix share
//! blocks.

use std::collections::{BTreeMap, BTreeSet};

use millrace_kernels::cuda;
use millrace_policy::stop_criteria::StopCriteria;
use millrace_policy::{
    Engine, EngineRequest, Finished, LoadedVersion, PolicyError, ReadyWeights, Ticket, own_weights,
};
use tch::Device;

use crate::decoder::{BLOCK, Decoder, KvCache, Lane, can_step};
use crate::gpu_kernels;
use crate::libtorch::{enter, guarded};
use crate::sampling::{Draw, Drawn, draw};
use millrace_schemas::PolicyVersion;
use millrace_schemas::generate::GenerateDone;

mod blocks;
mod buckets;
mod plan;
mod request;
mod steps;
mod memory;
mod weights;

use blocks::Blocks;
use buckets::forwards;
use plan::BatchLimits;
use request::Active;
use steps::Steps;

pub use memory::set_cache_share;
pub use weights::TorchWeights;

/// Multiplications and additions for the prefill of one step on a CPU: about a second on two cores,
/// for which all other requests wait.
const CPU_PREFILL_FLOPS: f64 = 64e9;

/// A step's own time, in multiplications and additions that a CPU could have made in it: a
/// millisecond.
const CPU_STEP_FLOPS: f64 = 64e6;
/// Tokens that a CPU computes in the time in which it reads a model's weights once.
const CPU_WEIGHTS_TOKENS: usize = 8;

/// Bounds of an engine.
#[derive(Debug, Clone, Copy)]
pub struct EngineSettings {
    /// Requests in the batch; further ones wait.
    pub sequences: usize,
    /// Bytes of the KV cache, including blocks that no request uses. A single request may have as
    /// much as it needs. `None`: on a GPU a share of the memory that is free when the engine
    /// starts, see [`set_cache_share`], on a CPU 512 MiB.
    pub cache_bytes: Option<usize>,
    /// New tokens of one forward.
    pub forward_tokens: usize,
    /// Tokens to prefill in one step; a longer context takes several. `None`: on a CPU what takes
    /// about a second, on a GPU as many as a forward may have.
    pub prefill_tokens: Option<usize>,
    /// Whether steps of one token a lane are those of the GPU, captured and replayed. `None`: where
    /// there is one. On a CPU its kernels are emulated, for tests.
    pub gpu_steps: Option<bool>,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            sequences: 1024,
            cache_bytes: None,
            forward_tokens: 8192,
            prefill_tokens: None,
            gpu_steps: None,
        }
    }
}

impl EngineSettings {
    fn prefill(&self, decoder: &Decoder, device: Device) -> usize {
        let most = if device == Device::Cpu {
            (CPU_PREFILL_FLOPS / (2.0 * decoder.layout().len as f64)) as usize
        } else {
            self.forward_tokens
        };
        self.prefill_tokens.unwrap_or(most).clamp(1, self.forward_tokens)
    }

    /// Tokens of a common prefix for which it pays to wait a step while another request prefills
    /// them. A small model computes many in the time of a step. A large one spends that time on
    /// reading its weights.
    fn worth_waiting(decoder: &Decoder, device: Device) -> usize {
        let most = 2 * BLOCK;
        if device != Device::Cpu {
            return most;
        }
        let tokens = (CPU_STEP_FLOPS / (2.0 * decoder.layout().len as f64)) as usize;
        tokens.saturating_add(CPU_WEIGHTS_TOKENS).min(most)
    }
}

/// An engine on libtorch.
#[derive(Debug)]
pub struct TorchEngine {
    settings: EngineSettings,
    device: Device,
    version: PolicyVersion,
    decoder: Decoder,
    stop_criteria: StopCriteria,
    cache: KvCache,
    blocks: Blocks,
    /// `None` where the general forward samples.
    steps: Option<Steps>,
    active: BTreeMap<Ticket, Active>,
    /// Requests without blocks: new, or pre-empted.
    waiting: BTreeSet<Ticket>,
    /// Failed at admission; returned by the next step.
    failed: Vec<Finished>,
}

impl TorchEngine {
    /// An engine with these weights loaded.
    ///
    /// # Errors
    /// The files are not a decoder that can be computed here, or memory is short.
    pub fn new(weights: &LoadedVersion, settings: EngineSettings) -> Result<Self, PolicyError> {
        Self::of(TorchWeights::read(weights)?, settings)
    }

    fn of(weights: TorchWeights, settings: EngineSettings) -> Result<Self, PolicyError> {
        let device = enter();
        guarded(|| {
            let TorchWeights { version, decoder, stop_criteria } = weights;
            let (cache, blocks) = memory::new_cache(&decoder, settings, device);
            Ok(Self {
                steps: new_steps(&decoder, settings, device),
                settings,
                device,
                version,
                decoder,
                stop_criteria,
                cache,
                blocks,
                active: BTreeMap::new(),
                waiting: BTreeSet::new(),
                failed: Vec::new(),
            })
        })
    }

    /// Whether steps of one token a lane are those of the GPU: wanted, and right on this device.
    #[must_use]
    pub const fn has_gpu_steps(&self) -> bool {
        self.steps.is_some()
    }

    /// Takes the blocks of all requests and clears them. The requests are prefilled again from
    /// their tokens.
    fn take_blocks(&mut self) {
        for active in self.active.values_mut() {
            active.take_blocks();
        }
        self.blocks.clear();
        self.waiting = self.active.keys().copied().collect();
    }

    /// Grows the cache to as many blocks as are allotted, in doublings.
    fn make_room(&mut self) {
        let (needed, there) = (self.blocks.len(), self.cache.blocks());
        if needed > there {
            let first = memory::first_blocks(&self.decoder, self.device);
            let most = self.blocks.most();
            self.cache.grow(needed.max(2 * there).min(most).max(first.min(most)));
            self.forget_steps();
        }
    }

    /// Weights or cache are elsewhere now.
    fn forget_steps(&mut self) {
        self.steps.iter_mut().for_each(Steps::clear);
    }

    /// One forward over `lanes` (request and new tokens), and a token for each request that has
    /// none left to prefill.
    fn forward(&mut self, lanes: &[(Ticket, usize)]) {
        let _guard = tch::no_grad_guard();
        let of = |(ticket, count): &(Ticket, usize)| {
            let active = &self.active[ticket];
            Lane { blocks: &active.blocks, cached: active.cached, tokens: active.next(*count) }
        };
        let lanes_in: Vec<Lane<'_>> = lanes.iter().map(of).collect();
        let draws: Vec<Draw> = lanes.iter().map(|(ticket, _)| self.active[ticket].draw()).collect();
        let drawn = match &mut self.steps {
            Some(steps) if lanes.iter().all(|&(_, tokens)| tokens == 1) => {
                steps.forward(&self.decoder, &self.cache, &lanes_in, &draws)
            }
            _ => {
                let (rows, mut attend) = self.cache.prepare(&lanes_in);
                draw(&self.decoder.forward(&rows, &mut attend), &draws)
            }
        };
        for (&(ticket, count), drawn) in lanes.iter().zip(drawn) {
            let active = self.active.get_mut(&ticket).expect("a lane's request is active");
            self.blocks.fill(&active.blocks, active.cached, active.next(count));
            active.advance(count, drawn, self.version, &self.stop_criteria);
        }
    }

    /// Removes the requests that ended, and releases their blocks.
    fn collect(&mut self) -> Vec<Finished> {
        let mut finished = std::mem::take(&mut self.failed);
        let ended: Vec<Ticket> =
            self.active.iter().filter(|(_, active)| active.is_ended()).map(|(&ticket, _)| ticket).collect();
        for ticket in ended {
            let mut active = self.active.remove(&ticket).expect("it was there just now");
            self.blocks.release(&active.take_blocks());
            finished.push(Finished { ticket, result: active.into_result() });
        }
        finished.sort_unstable_by_key(|one| one.ticket);
        finished
    }
}

impl Engine for TorchEngine {
    fn swap(&mut self, weights: Box<dyn ReadyWeights>) -> Result<(), PolicyError> {
        guarded(|| {
            let TorchWeights { version, decoder, stop_criteria } = *own_weights(weights)?;
            self.stop_criteria = stop_criteria.following(&self.stop_criteria);
            self.take_blocks();
            let same = decoder.config() == self.decoder.config();
            let is_here = self.decoder.flat().device() == decoder.flat().device();
            if same && is_here && self.steps.is_some() {
                // What was captured computes with the weights where they lie.
                self.decoder.overwrite(decoder.flat());
                // Their memory is another stream's, which may write there once they are dropped.
                cuda::wait();
            } else {
                if !same {
                    (self.cache, self.blocks) = memory::new_cache(&decoder, self.settings, self.device);
                    self.steps = new_steps(&decoder, self.settings, self.device);
                }
                self.decoder = decoder;
            }
            self.version = version;
            Ok(())
        })
    }

    fn admit(&mut self, request: EngineRequest) {
        let ticket = request.ticket;
        match Active::new(request, self.decoder.config(), &self.stop_criteria) {
            Ok(active) => {
                // With one position more for the copy of a shared block.
                self.blocks.allow((active.positions() + 1).div_ceil(BLOCK));
                self.active.insert(ticket, active);
                self.waiting.insert(ticket);
            }
            Err(why) => self.failed.push(Finished { ticket, result: Err(why) }),
        }
    }

    fn abandon(&mut self, ticket: Ticket) -> Option<GenerateDone> {
        let mut active = self.active.remove(&ticket)?;
        self.blocks.release(&active.take_blocks());
        self.waiting.remove(&ticket);
        active.into_result().ok()
    }

    fn step(&mut self) -> Result<Vec<Finished>, PolicyError> {
        guarded(|| {
            let mut copies = Vec::new();
            let copy = |from, to, positions| copies.push((from, to, positions));
            let limits = BatchLimits {
                most: self.settings.sequences.max(1),
                worth_waiting: EngineSettings::worth_waiting(&self.decoder, self.device),
            };
            let Self { active, waiting, blocks, .. } = self;
            plan::allot_blocks(active, waiting, blocks, limits, copy);
            self.make_room();
            for (from, to, positions) in copies {
                self.cache.copy(from, to, positions);
            }
            let prefill = self.settings.prefill(&self.decoder, self.device);
            let mut lanes = plan::lanes(&mut self.active, &mut self.waiting, &mut self.blocks, prefill);
            self.make_room();
            for forward in forwards(&mut lanes, self.settings.forward_tokens) {
                self.forward(forward);
            }
            Ok(self.collect())
        })
    }

    fn leave_device(&mut self) -> Result<(), PolicyError> {
        guarded(|| {
            self.take_blocks();
            self.forget_steps();
            self.cache = memory::no_cache(&self.decoder, self.device);
            self.blocks = Blocks::new(self.blocks.most());
            self.decoder.to_device(Device::Cpu);
            Ok(())
        })
    }

    fn return_to_device(&mut self) -> Result<(), PolicyError> {
        guarded(|| {
            self.decoder.to_device(self.device);
            Ok(())
        })
    }
}

/// Steps of the GPU, where there is one and its kernels have the model's shape.
fn new_steps(decoder: &Decoder, settings: EngineSettings, device: Device) -> Option<Steps> {
    let can = || gpu_kernels::wanted(device) && can_step(decoder.flat().kind(), device);
    let wanted = settings.gpu_steps.unwrap_or_else(can) && Decoder::has_steps(decoder.config());
    wanted.then(|| Steps::checked(decoder, device)).flatten()
}
