//! What the service has: sandboxes by name, and who owns each.
//!
//! A sandbox ends when its owner stops it, when nobody used it for its idle time or when its life is
//! over, or with this process. Asking for its state is no use of it. `stopped.rs` keeps the files of
//! those that may be started again.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millrace_sandbox::egress::Gate;
use millrace_sandbox::egress::rules::Rules;
use millrace_sandbox::live::{Bounds, Host, LiveError, LiveSandbox, Spec};
use tokio::time::{MissedTickBehavior, interval};
use uuid::Uuid;

use crate::hosted::{Hosted, Labels, Life, Using};
use crate::images::{Image, ImageStore, Images};
use crate::keys::{Keys, Owner};
use crate::network::Network;
use crate::stopped::StoppedOnes;

/// Between two looks for sandboxes that nobody uses.
const LOOK: Duration = Duration::from_millis(500);
/// Sandboxes that have ended and are still known by name.
const ENDED: usize = 10_000;
/// Characters of a sandbox's name.
const NAME_CHARS: usize = 64;

/// Bytes of a request without files: a command has 1 MiB, each byte of which JSON may write as six.
pub(crate) const REQUEST_BYTES: usize = 8 * 1024 * 1024;

/// How the service is run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Who may ask.
    pub keys: Keys,
    /// Names of images that stand for this machine's own programs.
    pub images: Vec<String>,
    /// Where other images are; without it there are no others.
    pub store: Option<ImageStore>,
    /// Sandboxes at once.
    pub most: usize,
    /// Bounds of each at most: a client that asks for more gets these, and is told so.
    pub bounds: Bounds,
    /// Idle time at most, of those that end when nobody uses them.
    pub idle: Duration,
    /// Life at most, of those that end at a moment.
    pub life: Duration,
    /// For how long the files of a stopped sandbox stay, where its client may start it again: if it
    /// does not say, and at most.
    pub keep: (Duration, Duration),
    /// Hosts that clients may open for their sandboxes.
    pub network: Network,
}

/// The service. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Service(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    host: Host,
    settings: Settings,
    images: Option<Images>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    /// `None`: it is being made.
    pub(crate) live: HashMap<String, Option<Arc<Hosted>>>,
    pub(crate) stopped: StoppedOnes,
    ended: VecDeque<Ended>,
}

/// A sandbox that was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) id: String,
    pub(crate) owner: Owner,
    pub(crate) image: String,
    pub(crate) why: &'static str,
}

/// What a client asks of a new sandbox.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    pub(crate) id: Option<String>,
    pub(crate) image: String,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) disk_bytes: Option<u64>,
    /// For how long it may be unused.
    pub(crate) idle: Option<Duration>,
    /// For how long it lives, used or not. Instead of `idle`.
    pub(crate) life: Option<Duration>,
    /// For how long its files stay once it is stopped.
    pub(crate) keep: Duration,
    pub(crate) env: BTreeMap<String, String>,
    /// Folders of the machine that it may read.
    pub(crate) read: Vec<PathBuf>,
    /// Hosts that it reaches.
    pub(crate) network: Rules,
    pub(crate) labels: Labels,
}

/// Why something is not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ServiceError {
    #[error("sandbox_id={0:?} is not there: it was never made, or has ended")]
    Missing(String),
    #[error("{field}={value}: {remedy}")]
    Invalid { field: &'static str, value: String, remedy: String },
    #[error(
        "image={0}: the service loaded other images for 60 s, of which a key has 4 at once; try again later"
    )]
    Loading(String),
    #[error("there are {0} sandboxes, and no more may be; stop one, or come back later")]
    Full(usize),
    #[error("{0}")]
    Sandbox(#[from] LiveError),
}

/// There is no sandbox of this name, for this owner.
pub(crate) fn missing(id: &str) -> ServiceError {
    ServiceError::Missing(id.chars().take(NAME_CHARS).collect())
}

pub(crate) fn invalid(
    field: &'static str,
    value: impl Into<String>,
    remedy: impl Into<String>,
) -> ServiceError {
    ServiceError::Invalid { field, value: value.into().chars().take(200).collect(), remedy: remedy.into() }
}

impl Service {
    /// Starts the service on a host of sandboxes.
    #[must_use]
    pub fn start(host: Host, settings: Settings) -> Self {
        let images = settings.store.clone().map(Images::new);
        let service = Self(Arc::new(Inner { host, settings, images, table: Mutex::default() }));
        let inner = Arc::downgrade(&service.0);
        tokio::spawn(async move {
            let mut looks = interval(LOOK);
            looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                looks.tick().await;
                let Some(inner) = inner.upgrade() else { return };
                Self(inner).end_idle();
            }
        });
        service
    }

    pub(crate) fn images(&self) -> Option<&Images> {
        self.0.images.as_ref()
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.0.settings
    }

    pub(crate) fn owner(&self, headers: &axum::http::HeaderMap) -> Option<Owner> {
        self.0.settings.keys.owner(headers)
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a sandbox.
    pub(crate) async fn make(&self, owner: Owner, wanted: Wanted) -> Result<Arc<Hosted>, ServiceError> {
        let image = self.image(owner, &wanted.image).await?;
        self.make_of(owner, wanted, image).await
    }

    /// The image of this name; `None`: this machine's own programs.
    pub(crate) async fn image(&self, owner: Owner, name: &str) -> Result<Option<Arc<Image>>, ServiceError> {
        let settings = &self.0.settings;
        if settings.images.iter().any(|known| known == name) {
            return Ok(None);
        }
        let Some(images) = &self.0.images else {
            let remedy = format!(
                "the images are {:?}, each this machine's own programs; there is no --image-store",
                settings.images
            );
            return Err(invalid("image", name, remedy));
        };
        images.find(&self.0.host, owner, name).await.map(Some)
    }

    /// Makes a sandbox of this machine's own programs, whatever its image is called.
    pub(crate) async fn make_here(&self, owner: Owner, wanted: Wanted) -> Result<Arc<Hosted>, ServiceError> {
        self.make_of(owner, wanted, None).await
    }

    async fn make_of(
        &self,
        owner: Owner,
        wanted: Wanted,
        image: Option<Arc<Image>>,
    ) -> Result<Arc<Hosted>, ServiceError> {
        let id = wanted.id.clone().unwrap_or_else(|| Uuid::now_v7().simple().to_string());
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if id.is_empty() || id.len() > NAME_CHARS || !id.chars().all(is_plain) {
            return Err(invalid("sandbox_id", id, "1 to 64 letters, digits, `-` and `_`"));
        }
        let place = self.reserve(&id)?;
        let (spec, gate) = self.spec(&wanted, image.as_deref())?;
        let live = match &image {
            None => self.0.host.create(spec).await?,
            Some(image) => self.0.host.fork(&image.files, spec).await?,
        };
        place.fill((live, gate), (owner, wanted, image))
    }

    /// How a sandbox is made, and its way to other hosts.
    pub(crate) fn spec(
        &self,
        wanted: &Wanted,
        image: Option<&Image>,
    ) -> Result<(Spec, Option<Gate>), ServiceError> {
        let settings = &self.0.settings;
        let most = settings.bounds;
        let bounds = Bounds {
            memory_bytes: wanted.memory_bytes.map_or(most.memory_bytes, |asked| asked.min(most.memory_bytes)),
            disk_bytes: wanted.disk_bytes.map_or(most.disk_bytes, |asked| asked.min(most.disk_bytes)),
            ..most
        };
        let gate = settings.network.open(wanted.network.clone())?;
        let forward = gate.iter().map(Gate::forward).collect();
        let images = image.iter().flat_map(|image| image.env.clone());
        let env = images.chain(gate.iter().flat_map(Gate::variables)).chain(wanted.env.clone()).collect();
        let system = image.map_or_else(|| Spec::default().system, |image| image.system);
        let spec = Spec { bounds, env, read: wanted.read.clone(), forward, system, ..Spec::default() };
        Ok((spec, gate))
    }

    /// When one that is made now ends by itself.
    fn life(&self, wanted: &Wanted) -> Life {
        let settings = &self.0.settings;
        let idle = wanted.idle.map_or(settings.idle, |asked| asked.min(settings.idle));
        let until = |life: Duration| Life::Until(Instant::now() + life.min(settings.life));
        wanted.life.map_or(Life::Idle(idle), until)
    }

    fn reserve(&self, id: &str) -> Result<Place<'_>, ServiceError> {
        let mut table = self.table();
        if table.live.contains_key(id) {
            return Err(invalid("sandbox_id", id, "there is one of this name; choose another, or stop it"));
        }
        if table.stopped.has(id) {
            let remedy = "there is a stopped one of this name; choose another, restart it, or delete it";
            return Err(invalid("sandbox_id", id, remedy));
        }
        if table.live.len() >= self.0.settings.most {
            return Err(ServiceError::Full(table.live.len()));
        }
        // One that runs needs the room more than the files of one that was stopped.
        if table.live.len() + table.stopped.len() >= self.0.settings.most {
            table.stopped.forget_oldest();
        }
        table.live.insert(id.to_owned(), None);
        Ok(Place { service: self, id: Some(id.to_owned()) })
    }

    /// A sandbox of this owner. To another owner it is not there.
    pub(crate) fn look(&self, owner: Owner, id: &str) -> Result<Arc<Hosted>, ServiceError> {
        let found = self.find(id).filter(|hosted| hosted.owner == owner);
        found.ok_or_else(|| missing(id))
    }

    /// A sandbox of any owner, for those who have its own token.
    pub(crate) fn find(&self, id: &str) -> Option<Arc<Hosted>> {
        self.table().live.get(id).cloned().flatten().filter(is_there)
    }

    /// The sandboxes of this owner, in no order.
    pub(crate) fn all(&self, owner: Owner) -> Vec<Arc<Hosted>> {
        let table = self.table();
        let all = table.live.values().flatten();
        all.filter(|hosted| hosted.owner == owner && is_there(hosted)).cloned().collect()
    }

    /// The same, to use it.
    pub(crate) fn use_it(&self, owner: Owner, id: &str) -> Result<Using, ServiceError> {
        Ok(self.look(owner, id)?.begin())
    }

    /// One that has ended.
    pub(crate) fn ended(&self, owner: Owner, id: &str) -> Option<Ended> {
        let table = self.table();
        table.ended.iter().rev().find(|ended| ended.id == id && ended.owner == owner).cloned()
    }

    /// Ends a sandbox, and waits until nothing of it is left but files that are kept.
    pub(crate) async fn stop(&self, owner: Owner, id: &str) -> Result<(), ServiceError> {
        let hosted = self.look(owner, id)?;
        self.end(&hosted, "stopped").await;
        Ok(())
    }

    /// Ends this one, for this reason, and waits until nothing of it is left but files that are kept.
    pub(crate) async fn end(&self, hosted: &Arc<Hosted>, why: &'static str) {
        let keeps = {
            let mut table = self.table();
            // Another may have its name by now.
            let live = table.live.get(&hosted.id).and_then(Option::as_ref);
            if !live.is_some_and(|live| Arc::ptr_eq(live, hosted)) {
                return;
            }
            table.live.remove(&hosted.id);
            let keeps = !hosted.wanted.keep.is_zero();
            if keeps {
                table.stopped.expect(hosted);
            }
            if table.ended.len() == ENDED {
                table.ended.pop_front();
            }
            let (id, image) = (hosted.id.clone(), hosted.wanted.image.clone());
            table.ended.push_back(Ended { id, owner: hosted.owner, image, why });
            keeps
        };
        if keeps {
            let (service, hosted) = (self.clone(), Arc::clone(hosted));
            // The same for one that is stopped.
            let stopped = tokio::spawn(async move {
                let files = hosted.stop().await;
                service.table().stopped.arrived(&hosted, files);
            });
            let _ = stopped.await;
        } else {
            hosted.end().await;
        }
    }

    /// Ends those that nobody uses, or that ended by themselves; each in a task of its own.
    fn end_idle(&self) {
        self.table().stopped.forget_old();
        let all: Vec<Arc<Hosted>> =
            self.table().live.values().flatten().filter(|one| !is_there(one)).cloned().collect();
        for hosted in all {
            let service = self.clone();
            let why = hosted.why_over();
            tracing::info!(sandbox = hosted.id, why, "a sandbox ends");
            tokio::spawn(async move { service.end(&hosted, why).await });
        }
    }
}

/// Whether it can be used: neither its life nor its processes are over.
fn is_there(hosted: &Arc<Hosted>) -> bool {
    hosted.live.is_alive() && !hosted.left().is_zero()
}

/// A name that is taken while its sandbox is made; free again where that fails.
pub(crate) struct Place<'s> {
    pub(crate) service: &'s Service,
    pub(crate) id: Option<String>,
}

impl Place<'_> {
    pub(crate) fn fill(
        mut self,
        made: (LiveSandbox, Option<Gate>),
        (owner, wanted, image): (Owner, Wanted, Option<Arc<Image>>),
    ) -> Result<Arc<Hosted>, ServiceError> {
        let id = self.id.clone().unwrap_or_default();
        let life = self.service.life(&wanted);
        let hosted = Arc::new(Hosted::new((id.clone(), owner), made, (wanted, image), life)?);
        self.service.table().live.insert(id, Some(Arc::clone(&hosted)));
        self.id = None;
        Ok(hosted)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(id) = &self.id {
            self.service.table().live.remove(id);
        }
    }
}
