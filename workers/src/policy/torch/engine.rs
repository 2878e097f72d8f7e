//! Samples turns by continuous batching: requests join and leave between steps, each step is one forward
//! over the new tokens of all of them. A rollout's keys and values stay in their slot after its turn, so
//! that its next turn computes only what was added.

use std::collections::{HashMap, VecDeque};

use tch::Device;

use super::sampling::{Draw, draw};
use super::{MODEL_FILE, enter, guarded};
use crate::policy::decoder::{Config, Decoder, KvCache, Lane, Layout, read_tensors};
use crate::policy::{CONFIG_FILE, Engine, EngineRequest, Finished, PolicyError, Ticket};
use crate::weights::LoadedVersion;
use millrace_schemas::PolicyVersion;

mod buckets;
mod request;
mod slots;

use buckets::forwards;
use request::Active;
use slots::Slots;

/// Bounds of an engine.
#[derive(Debug, Clone, Copy)]
pub struct EngineSettings {
    /// Sequences whose keys and values are kept; requests beyond wait for a slot.
    pub slots: usize,
    /// Bytes of keys and values; fewer slots are kept where the model's contexts need more.
    pub cache_bytes: usize,
    /// New tokens of one forward: a longer prefill takes several steps.
    pub forward_tokens: usize,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self { slots: 1024, cache_bytes: 512 << 20, forward_tokens: 8192 }
    }
}

/// An engine on libtorch.
#[derive(Debug)]
pub struct TorchEngine {
    settings: EngineSettings,
    device: Device,
    version: PolicyVersion,
    decoder: Decoder,
    cache: KvCache,
    slots: Slots,
    active: HashMap<Ticket, Active>,
    /// Admitted, and without a slot yet.
    waiting: VecDeque<Ticket>,
    /// Failed at admission; told at the next step.
    failed: Vec<Finished>,
}

impl TorchEngine {
    /// An engine with these weights loaded.
    ///
    /// # Errors
    /// The files are not a decoder that can be computed here, or memory is short.
    pub fn new(weights: &LoadedVersion, settings: EngineSettings) -> Result<Self, PolicyError> {
        let device = enter();
        guarded(|| {
            let decoder = read_decoder(weights, device)?;
            let (cache, slots) = new_cache(decoder.config(), settings, 1, device);
            Ok(Self {
                settings,
                device,
                version: weights.version,
                decoder,
                cache,
                slots,
                active: HashMap::new(),
                waiting: VecDeque::new(),
                failed: Vec::new(),
            })
        })
    }

    /// Gives slots to those who wait, oldest first, as long as there are any.
    fn seat(&mut self) {
        while let Some(&ticket) = self.waiting.front() {
            let Some(active) = self.active.get_mut(&ticket) else {
                self.waiting.pop_front();
                continue;
            };
            let Some((slot, cached)) = self.slots.take(active.rollout, self.version, &active.tokens) else {
                return;
            };
            active.seat(slot, cached);
            self.waiting.pop_front();
        }
    }

    /// Makes room for sequences of `positions`. A larger cache begins empty: this happens a few times in the
    /// life of an engine, as its longest rollout grows.
    fn grow(&mut self, positions: usize) {
        if positions as i64 <= self.cache.positions() {
            return;
        }
        // The old cache goes before the new one comes.
        self.cache = KvCache::new(self.decoder.config(), 1, 1, self.device);
        (self.cache, self.slots) = new_cache(self.decoder.config(), self.settings, positions, self.device);
        self.unseat();
    }

    /// Takes their slots from all requests; they are computed anew from their tokens.
    fn unseat(&mut self) {
        let mut tickets: Vec<Ticket> = self.active.keys().copied().collect();
        tickets.sort_unstable();
        for ticket in &tickets {
            if let Some(active) = self.active.get_mut(ticket) {
                active.unseat();
            }
        }
        self.waiting = tickets.into();
    }

    /// One forward over `lanes` (request and new tokens), and a token for each request that has none left to
    /// prefill.
    fn forward(&mut self, lanes: &[(Ticket, usize)]) {
        let _guard = tch::no_grad_guard();
        let of = |(ticket, count): &(Ticket, usize)| {
            let active = &self.active[ticket];
            Lane { slot: active.slot_at() as i64, cached: active.cached as i64, tokens: active.next(*count) }
        };
        let lanes_in: Vec<Lane<'_>> = lanes.iter().map(of).collect();
        let (rows, mut attend) = self.cache.prepare(&lanes_in);
        let logits = self.decoder.forward(&rows, &mut attend);
        let draws: Vec<Draw> = lanes.iter().map(|(ticket, _)| self.active[ticket].draw()).collect();
        let drawn = draw(&logits, &draws);
        for (&(ticket, count), (token, logprob)) in lanes.iter().zip(drawn) {
            let active = self.active.get_mut(&ticket).expect("a lane's request is active");
            self.slots.extend(active.slot_at(), active.next(count));
            active.advance(count, token, logprob, self.version);
        }
    }

    /// Removes the requests that ended, and frees their slots.
    fn collect(&mut self) -> Vec<Finished> {
        let mut finished = std::mem::take(&mut self.failed);
        let ended = self.active.extract_if(|_, active| active.is_ended());
        for (ticket, active) in ended {
            self.slots.release(active.slot_at());
            finished.push(Finished { ticket, result: active.into_result() });
        }
        // A map has no order; what is told of does.
        finished.sort_unstable_by_key(|one| one.ticket);
        finished
    }
}

impl Engine for TorchEngine {
    fn load(&mut self, weights: &LoadedVersion) -> Result<(), PolicyError> {
        guarded(|| {
            let decoder = read_decoder(weights, self.device)?;
            if decoder.config() != self.decoder.config() {
                let positions = self.cache.positions() as usize;
                (self.cache, self.slots) = new_cache(decoder.config(), self.settings, positions, self.device);
            }
            self.decoder = decoder;
            self.version = weights.version;
            self.slots.clear();
            self.unseat();
            Ok(())
        })
    }

    fn admit(&mut self, request: EngineRequest) {
        let ticket = request.ticket;
        match Active::new(request, self.decoder.config()) {
            Ok(active) => {
                self.active.insert(ticket, active);
                self.waiting.push_back(ticket);
            }
            Err(why) => self.failed.push(Finished { ticket, result: Err(why) }),
        }
    }

    fn abandon(&mut self, ticket: Ticket) {
        if let Some(active) = self.active.remove(&ticket)
            && let Some(slot) = active.slot
        {
            self.slots.release(slot);
        }
    }

    fn step(&mut self) -> Result<Vec<Finished>, PolicyError> {
        guarded(|| {
            let longest = self.active.values().map(Active::positions).max().unwrap_or(0);
            self.grow(longest);
            self.seat();
            let mut lanes: Vec<(Ticket, usize)> = self
                .active
                .iter()
                .filter(|(_, active)| active.slot.is_some())
                .map(|(&ticket, active)| (ticket, active.missing().min(self.settings.forward_tokens)))
                .collect();
            for forward in forwards(&mut lanes, self.settings.forward_tokens) {
                self.forward(forward);
            }
            Ok(self.collect())
        })
    }
}

fn read_decoder(weights: &LoadedVersion, device: Device) -> Result<Decoder, PolicyError> {
    let config = Config::read(weights.file(CONFIG_FILE)?)?;
    let flat = read_tensors(MODEL_FILE, weights.file(MODEL_FILE)?, "", &Layout::of(&config))?;
    Ok(Decoder::new(config, &flat, device, false))
}

/// A cache for sequences of at least `positions`, rounded up to a power of two so that it seldom grows.
fn new_cache(
    config: &Config,
    settings: EngineSettings,
    positions: usize,
    device: Device,
) -> (KvCache, Slots) {
    let positions = positions.next_power_of_two().max(64).min(config.context);
    let fit = settings.cache_bytes / (KvCache::bytes_per_position(config) * positions).max(1);
    let slots = settings.slots.min(fit).max(1);
    (KvCache::new(config, slots as i64, positions as i64, device), Slots::new(slots))
}
