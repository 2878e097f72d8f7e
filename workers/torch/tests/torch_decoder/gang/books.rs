//! Versions that a gang commits, in memory: the part of the object store.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use bytes::Bytes;
use millrace_policy::gang::RankAssignment;
use millrace_policy::{
    CONFIG_FILE, CRITIC_FILE, LoadedVersion, Past, Place, PolicyError, Share, TrainStep, Trained, Trainer,
};
use millrace_schemas::blob::Sha;
use millrace_schemas::envelope::{decode, encode};
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::submit::Algorithm;
use millrace_schemas::train_shard::{Batch, BatchRollout, BatchTurn, FileRef, StoredTrajectory};
use millrace_schemas::{BlobRef, EntryRef, Fork, PolicyVersion};
use millrace_torch::TorchTrainer;
use tch::{Kind, Tensor};

use super::ranks::{PATIENCE, assignments, together};
use crate::algorithm_steps::CRITIC;
use crate::support::{Shape, initial, sampled_batch};

/// Committed versions, their files and batches.
#[derive(Debug, Default)]
pub(crate) struct Books {
    blobs: Mutex<HashMap<Sha, Bytes>>,
    manifests: Mutex<BTreeMap<PolicyVersion, Manifest>>,
    /// Names of the files that were read.
    read: Mutex<Vec<String>>,
    /// Members get all turns of a batch, not only those of their own share.
    pub(crate) gives_all: bool,
}

impl Past for Books {
    fn manifest(&self, version: PolicyVersion, sha: Sha) -> Result<Manifest, PolicyError> {
        let manifest = self.manifests.lock().unwrap()[&version].clone();
        assert_eq!(Sha::of(&manifest.to_json()), sha);
        Ok(manifest)
    }

    fn blob(&self, blob: &BlobRef) -> Result<Bytes, PolicyError> {
        let manifests = self.manifests.lock().unwrap();
        let name = manifests.values().flat_map(|m| &m.files).find(|file| file.blob == *blob);
        self.read.lock().unwrap().push(name.map_or_else(|| "batch".to_owned(), |file| file.name.clone()));
        let missing = || PolicyError::Impossible(format!("{blob:?} is gone"));
        self.blobs.lock().unwrap().get(&blob.sha256).cloned().ok_or_else(missing)
    }

    fn batch(&self, blob: &BlobRef, algorithm: &Algorithm, place: Place) -> Result<Batch, PolicyError> {
        Ok(self.given(&decode("batch", &self.blob(blob)?).unwrap(), algorithm, place))
    }
}

/// How a gang makes a step.
#[derive(Debug, Clone)]
pub(crate) struct How {
    pub(crate) algorithm: Algorithm,
    pub(crate) checkpoint: bool,
}

impl Books {
    /// Books with version 0.
    pub(crate) fn new(seed: u64) -> (Self, LoadedVersion) {
        Self::of(&initial(seed))
    }

    /// Books that begin with this version 0.
    pub(crate) fn of(zero: &LoadedVersion) -> (Self, LoadedVersion) {
        let books = Self::default();
        let made = Trained { files: zero.files.clone(), metrics: BTreeMap::new() };
        let base = books.commit(None, vec![made]);
        (books, base)
    }

    /// Commits the files of a gang's members; returns the version as a worker has it, of its files
    /// only the config.
    pub(crate) fn commit(
        &self,
        step: Option<(&LoadedVersion, BlobRef)>,
        made: Vec<Trained>,
    ) -> LoadedVersion {
        let metrics = made[0].metrics.clone();
        let mut files = BTreeMap::new();
        for trained in made {
            for (name, bytes) in trained.files {
                assert!(files.insert(name.clone(), bytes).is_none(), "two members wrote {name}");
            }
        }
        let version = step.map_or(PolicyVersion(0), |(base, _)| base.version.next());
        let manifest = Manifest {
            run: "test".parse().unwrap(),
            version,
            parent: step.map(|(base, _)| base.sha),
            batch: step.map(|(_, blob)| blob),
            config: Sha::of(b"config"),
            files: files.iter().map(|(name, bytes)| FileRef::whole(name, BlobRef::of(bytes))).collect(),
            metrics,
        };
        for bytes in files.values() {
            self.put(bytes.clone());
        }
        self.manifests.lock().unwrap().insert(version, manifest.clone());
        let sha = Sha::of(&manifest.to_json());
        files.retain(|name, _| name == CONFIG_FILE);
        LoadedVersion { version, manifest, sha, files }
    }

    pub(crate) fn put(&self, bytes: Bytes) -> BlobRef {
        let blob = BlobRef::of(&bytes);
        self.blobs.lock().unwrap().insert(blob.sha256, bytes);
        blob
    }

    /// Drops the files of a version, as retention does.
    pub(crate) fn collect(&self, version: &LoadedVersion, except: &str) {
        let mut blobs = self.blobs.lock().unwrap();
        for file in version.manifest.files.iter().filter(|file| !file.name.starts_with(except)) {
            if file.name != CONFIG_FILE {
                blobs.remove(&file.blob.sha256);
            }
        }
    }

    /// Files that were read since the last call.
    pub(crate) fn taken(&self) -> Vec<String> {
        let mut read = std::mem::take(&mut *self.read.lock().unwrap());
        read.sort();
        read
    }

    /// The batch as a member has it: of the rollouts outside of its share only references.
    fn given(&self, batch: &Batch, algorithm: &Algorithm, place: Place) -> Batch {
        let share = Share::of(batch, algorithm, place);
        let mut batch = batch.clone();
        let rollouts = batch.groups.iter_mut().flat_map(|group| &mut group.rollouts);
        rollouts.enumerate().filter(|(index, _)| !self.gives_all && !share.needs(*index)).for_each(
            |(_, rollout)| {
                *rollout = referred(rollout);
            },
        );
        batch
    }

    /// Version 0 as a reference, with the config of `base`.
    fn version_zero(&self, base: &LoadedVersion) -> LoadedVersion {
        let manifest = self.manifests.lock().unwrap()[&PolicyVersion(0)].clone();
        let sha = Sha::of(&manifest.to_json());
        LoadedVersion { version: PolicyVersion(0), manifest, sha, files: base.files.clone() }
    }

    /// A step of these members, by rank, with these assignments; the result of each.
    pub(crate) fn attempt(
        &self,
        members: &mut [TorchTrainer],
        assignments: &[RankAssignment],
        base: &LoadedVersion,
        batch: &Batch,
        how: &How,
    ) -> (BlobRef, Vec<Result<Trained, PolicyError>>) {
        let batch = Batch { base: base.version, manifest: base.sha, seed: base.version.0, ..batch.clone() };
        let blob = self.put(encode(&batch));
        let reference = how.algorithm.kl.map(|_| self.version_zero(base));
        let members: Vec<Mutex<&mut TorchTrainer>> = members.iter_mut().map(Mutex::new).collect();
        let made = together(assignments, |assignment| {
            let How { algorithm, checkpoint } = how;
            let place = Place { rank: assignment.rank, world: assignment.world };
            let step = TrainStep {
                batch: &self.given(&batch, algorithm, place),
                blob,
                algorithm,
                reference: reference.as_ref(),
                assignment: Some(assignment),
                checkpoint: *checkpoint,
                past: self,
            };
            members[assignment.rank as usize].lock().unwrap().step(base, &step)
        });
        (blob, made)
    }

    /// A step that succeeds and is committed.
    pub(crate) fn step(
        &self,
        members: &mut [TorchTrainer],
        assignments: &[RankAssignment],
        base: &LoadedVersion,
        batch: &Batch,
        how: &How,
    ) -> LoadedVersion {
        let (blob, made) = self.attempt(members, assignments, base, batch, how);
        self.commit(Some((base, blob)), made.into_iter().map(Result::unwrap).collect())
    }

    /// Steps one after another in one formation.
    pub(crate) fn steps(
        &self,
        members: &mut [TorchTrainer],
        base: LoadedVersion,
        batches: &[Batch],
        how: &How,
    ) -> LoadedVersion {
        let assignments = assignments(members.len() as u32, PATIENCE);
        batches.iter().fold(base, |base, batch| self.step(members, &assignments, &base, batch, how))
    }

    fn bytes(&self, version: &LoadedVersion, name: &str) -> Bytes {
        let blob = version.manifest.file(name).unwrap();
        self.blobs.lock().unwrap()[&blob.sha256].clone()
    }

    /// A version's weights.
    pub(crate) fn weights(&self, version: &LoadedVersion) -> Tensor {
        let bytes = self.bytes(version, "model.safetensors");
        let config = millrace_torch::decoder::Config::read(&version.files[CONFIG_FILE]).unwrap();
        let layout = millrace_torch::decoder::Layout::of(&config);
        let read = millrace_torch::decoder::read_tensors("model", &bytes, "", &layout);
        read.unwrap().to_kind(Kind::Double)
    }

    /// The first and the second moments of a checkpoint, from all its shards in the order of the
    /// flat buffer.
    pub(crate) fn moments(&self, version: &LoadedVersion) -> [Tensor; 2] {
        ["exp_avg", "exp_avg_sq"].map(|name| self.sharded(version, name))
    }

    /// The critic, if the version has one.
    pub(crate) fn critic(&self, version: &LoadedVersion) -> Option<Tensor> {
        version.manifest.file(CRITIC_FILE)?;
        let bytes = self.bytes(version, CRITIC_FILE);
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let data = file.tensor(CRITIC).unwrap();
        let numbers = Tensor::from_data_size(data.data(), &[data.shape()[1] as i64], Kind::Float);
        Some(numbers.to_kind(Kind::Double))
    }

    /// The weights in f32 of a checkpoint of a model in bf16.
    pub(crate) fn masters(&self, version: &LoadedVersion) -> Tensor {
        self.sharded(version, "master_weights")
    }

    fn sharded(&self, version: &LoadedVersion, name: &str) -> Tensor {
        let critic = self.critic(version).map_or(0, |critic| critic.numel());
        let len = (self.weights(version).numel() + critic) as i64;
        let whole = Tensor::full([len], f64::NAN, (Kind::Double, tch::Device::Cpu));
        for file in version.manifest.files.iter().filter(|file| file.name.starts_with("optimizer")) {
            let bytes = self.bytes(version, &file.name);
            let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
            let header = header.metadata().as_ref().unwrap()["shard"].clone();
            let header: serde_json::Value = serde_json::from_str(&header).unwrap();
            let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let data = tensors.tensor(name).unwrap();
            let part = Tensor::from_data_size(data.data(), &[data.shape()[0] as i64], Kind::Float);
            let mut at = 0;
            for range in header["ranges"].as_array().unwrap() {
                let (from, len) = (range[0].as_i64().unwrap(), range[1].as_i64().unwrap());
                whole.narrow(0, from, len).copy_(&part.narrow(0, at, len));
                at += len;
            }
        }
        assert!(bool::try_from(whole.isfinite().all()).unwrap(), "a part of {name} is missing");
        whole
    }
}

/// The same rollout with its turns stored elsewhere.
pub(crate) fn referred(rollout: &BatchRollout) -> BatchRollout {
    let (mut entries, mut seen) = (Vec::new(), 0);
    for turn in &rollout.turns {
        for tokens in [turn.at - seen, turn.logprobs.len() as u32] {
            entries.push(EntryRef { seq: entries.len() as u64, tokens, check: 0 });
        }
        seen = turn.at + turn.logprobs.len() as u32;
    }
    let turns = rollout.turns.iter().map(|turn| BatchTurn { at: 0, logprobs: Vec::new(), ..turn.clone() });
    BatchRollout {
        tokens: Vec::new(),
        turns: turns.collect(),
        stored: Some(StoredTrajectory { entries, uncut_logprobs: false }),
        ..rollout.clone()
    }
}

/// Fresh members.
pub(crate) fn members(count: usize) -> Vec<TorchTrainer> {
    // Small buckets, so that the small model has several.
    (0..count).map(|_| TorchTrainer::with_buckets(64 * 1024)).collect()
}

/// Batches that rollouts of version 0 make, with several turns each and of different lengths.
pub(crate) fn batches(
    base: &LoadedVersion,
    books: &Books,
    count: u64,
    (groups, size): (u64, u32),
) -> Vec<Batch> {
    const SHAPE: Shape = Shape { turns: 3, observation: 9, new: 2, below: None };
    let mut files = base.files.clone();
    files.insert("model.safetensors".to_owned(), books.bytes(base, "model.safetensors"));
    let whole = LoadedVersion { files, ..base.clone() };
    let mut batches: Vec<Batch> =
        (0..count).map(|seed| sampled_batch(&whole, groups, size, SHAPE, seed)).collect();
    // Some have a fork, which every member must see alike.
    let groups = batches.iter_mut().flat_map(|batch| &mut batch.groups);
    for rollout in groups.filter_map(|group| group.rollouts.first_mut()) {
        rollout.forks = vec![Fork { turn: 3, follows: 1 }];
    }
    batches
}

/// The same with the gradient sharded.
pub(crate) fn sharded(how: &How) -> How {
    How { algorithm: Algorithm { shard_gradients: true, ..how.algorithm.clone() }, ..how.clone() }
}

/// The same with the weights sharded too.
pub(crate) fn weights_sharded(how: &How) -> How {
    let algorithm = Algorithm { recompute: true, shard_weights: true, ..sharded(how).algorithm };
    How { algorithm, ..how.clone() }
}

/// Several updates a step, with everything that makes one differ from the next.
pub(crate) fn many_updates(checkpoint: bool) -> How {
    let algorithm =
        Algorithm { epochs: 2, minibatches: 3, weight_decay: 0.01, warmup_steps: 2, ..Algorithm::default() };
    How { algorithm, checkpoint }
}

/// How far apart the weights of two runs of the same steps may be, as a share of how far the steps
/// moved them.
pub(crate) const MOST_APART: f64 = 2e-3;

/// The Euclidean length of all elements.
pub(crate) fn length(of: &Tensor) -> f64 {
    f64::try_from(of.square().sum(Kind::Double).sqrt()).unwrap()
}

/// Asserts that two runs of the same steps came to the same to f32 rounding. Each moment, a sum of
/// gradients, is within a small share of the largest. Weights are compared element by element where
/// the moment is above its noise, and all together.
pub(crate) fn same(a: (&Books, &LoadedVersion), b: (&Books, &LoadedVersion), how: &How, what: &str) {
    let rate = how.algorithm.learning_rate;
    let largest = |x: &Tensor| f64::try_from(x.abs().max()).unwrap();
    let (ours, theirs) = (a.0.moments(a.1), b.0.moments(b.1));
    for (ours, theirs) in ours.iter().zip(&theirs) {
        let off = largest(&(ours - theirs)) / largest(theirs);
        assert!(off < 1e-4, "{what}: moments off by {off} of the largest");
    }
    let (ours, theirs_weights) = (a.0.weights(a.1), b.0.weights(b.1));
    let apart = ours - &theirs_weights;
    let root = theirs[1].narrow(0, 0, apart.size()[0]).sqrt();
    let clear = root.ge(NOISE * largest(&root));
    let share = f64::try_from(clear.to_kind(Kind::Double).mean(Kind::Double)).unwrap();
    assert!(share > 0.1, "{what}: only {share} of the weights are compared one by one");
    let off = largest(&apart.masked_select(&clear)) / rate;
    assert!(off < 0.2, "{what}: weights off by {off} of the learning rate");
    let zero = b.0.manifests.lock().unwrap()[&PolicyVersion(0)].clone();
    let zero = LoadedVersion { manifest: zero, ..b.1.clone() };
    let off = length(&apart) / length(&(theirs_weights - b.0.weights(&zero)));
    assert!(off < MOST_APART, "{what}: weights off by {off} of how far they moved");
}

/// The root of an element's second moment, as a share of the largest, below which its gradients may
/// be rounding.
const NOISE: f64 = 1e-2;
