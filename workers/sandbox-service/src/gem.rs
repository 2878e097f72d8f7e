//! GEM's protocol for environments, as ROCK's Python client 1.11 speaks it: `rock.make(env_id)` and
//! then `reset`, `step`, `close`. `requests.rs` is what is asked, `answer.rs` the shape of what is
//! answered, `player.rs` the program that plays one environment in a sandbox of its own.
//!
//! An environment is a sandbox of its key: it counts among them, ends when nobody uses it, and
//! nothing is left of it. That client sends no header of its own, so its address has the key.

mod answer;
mod requests;
pub(crate) mod player;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequestParts, State};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{OwnedMutexGuard, Semaphore};
use tokio::time::timeout;

use crate::hosted::{Hosted, Using};
use crate::keys::Owner;
use crate::service::{Service, Wanted, invalid};
use answer::{Failure, body, done};
use player::{PlayError, Player, Turn};
use requests::{ById, Make, Reset, ResetTold, Step, StepTold, check_env_id};

/// Where ROCK's clients look.
const PREFIX: &str = "/apis/v1/envs/gem";
/// Bytes of a request: an action is one.
const REQUEST_BYTES: usize = 1024 * 1024;
/// What the sandboxes' image is called without `--gem-image`: this machine's own programs.
const IMAGE: &str = "gem";
/// Environments that start at once: a start is a program that imports much.
const STARTS: usize = 8;
/// For how long a start may wait for others. The client has 300 s for all of it.
const START_WAIT: Duration = Duration::from_secs(60);

/// How environments are served.
#[derive(Debug, Clone)]
pub struct Settings {
    /// A line for `sh`: a program that says what it offers and answers, line by line.
    pub command: String,
    /// Folders of the machine that it may read.
    pub read: Vec<PathBuf>,
    /// The image of the store that it runs in; `None`: this machine's own programs.
    pub image: Option<String>,
    /// Environments at once.
    pub most: usize,
    /// For how long it may take over one answer.
    pub step: Duration,
}

#[derive(Debug, Clone)]
struct Gem(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    service: Service,
    settings: Settings,
    /// One permit for each environment that there is.
    room: Arc<Semaphore>,
    starts: Semaphore,
}

type Answer = Result<Response, Failure>;

/// The protocol's paths. Without settings each says that it is not served.
pub(crate) fn routes(service: Service, settings: Option<Settings>) -> Router {
    let Some(settings) = settings else {
        return Router::new().nest(PREFIX, Router::new().fallback(off));
    };
    let (room, starts) = (Arc::new(Semaphore::new(settings.most)), Semaphore::new(STARTS));
    let gem = Gem(Arc::new(Inner { service, settings, room, starts }));
    let paths = Router::new()
        .route("/make", post(make))
        .route("/reset", post(reset))
        .route("/step", post(step))
        .route("/close", post(close))
        .fallback(unknown)
        .layer(DefaultBodyLimit::max(REQUEST_BYTES))
        .with_state(gem);
    Router::new().nest(PREFIX, paths)
}

async fn off() -> Response {
    Failure::missing("environments are not served: start millrace-sandboxes with --gem COMMAND")
        .into_response()
}

async fn unknown() -> Response {
    Failure::missing("there are make, reset, step and close below /apis/v1/envs/gem").into_response()
}

async fn make(State(gem): State<Gem>, Asker(owner): Asker, bytes: Bytes) -> Answer {
    let Make { env_id } = body(&bytes)?;
    check_env_id(&env_id)?;
    let most = gem.0.settings.most;
    let room = Arc::clone(&gem.0.room).try_acquire_owned().map_err(|_| Failure::full(most))?;
    let starting = timeout(START_WAIT, gem.0.starts.acquire()).await;
    let Ok(Ok(_starting)) = starting else { return Err(Failure::busy(START_WAIT)) };
    let (service, settings) = (&gem.0.service, &gem.0.settings);
    let image = settings.image.clone().unwrap_or_else(|| IMAGE.to_owned());
    let network = service.settings().network.unasked();
    let wanted = Wanted { image, read: settings.read.clone(), network, ..Wanted::default() };
    let hosted = match settings.image {
        Some(_) => service.make(owner, wanted).await?,
        None => service.make_here(owner, wanted).await?,
    };
    // Where this future is dropped, the sandbox ends when it has been idle.
    let _using = hosted.begin();
    match begin(&hosted, settings, &env_id).await {
        Ok(player) => {
            player.keep(room);
            let _ = hosted.player.set(player);
            Ok(done(&json!({ "sandbox_id": hosted.id })))
        }
        Err(error) => {
            service.end(&hosted, "its environment did not start").await;
            // The environment itself says no: the id is wrong, or what it asks for is not there.
            Err(match error {
                PlayError::Refused(reason) => invalid("env_id", env_id, reason).into(),
                other => other.into(),
            })
        }
    }
}

async fn begin(hosted: &Hosted, settings: &Settings, env_id: &str) -> Result<Player, PlayError> {
    let player = Player::start(&hosted.live, &settings.command, settings.step).await?;
    player.ask(&json!({ "ask": "live_make", "id": env_id })).await?;
    Ok(player)
}

async fn reset(State(gem): State<Gem>, Asker(owner): Asker, bytes: Bytes) -> Answer {
    let asked: Reset = body(&bytes)?;
    let (using, turn) = gem.turn(owner, &asked.sandbox_id)?;
    let seed = asked.seed.map_or_else(requests::any_seed, Ok)?;
    gem.play(using, turn, json!({ "ask": "live_reset", "seed": seed }), |_: &ResetTold| Turn::Playing).await
}

async fn step(State(gem): State<Gem>, Asker(owner): Asker, bytes: Bytes) -> Answer {
    let asked: Step = body(&bytes)?;
    let (using, turn) = gem.turn(owner, &asked.sandbox_id)?;
    if let Some(why) = turn.why_not() {
        return Err(Failure::out_of_order(why));
    }
    let after = |told: &StepTold| match (told.terminated, told.truncated) {
        (false, false) => Turn::Playing,
        (true, _) => Turn::Terminated,
        (false, true) => Turn::Truncated,
    };
    gem.play(using, turn, json!({ "ask": "live_step", "said": asked.action }), after).await
}

async fn close(State(gem): State<Gem>, Asker(owner): Asker, bytes: Bytes) -> Answer {
    let ById { sandbox_id } = body(&bytes)?;
    let hosted = gem.find(owner, &sandbox_id)?;
    gem.0.service.end(&hosted, "closed").await;
    Ok(done(&json!({ "sandbox_id": sandbox_id })))
}

/// Who asks. It stands before the body among the arguments of a handler: without a known key no body
/// is read.
#[derive(Debug)]
struct Asker(Owner);

impl FromRequestParts<Gem> for Asker {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, gem: &Gem) -> Result<Self, Failure> {
        gem.0.service.owner(&parts.headers).map(Self).ok_or_else(Failure::no_key)
    }
}

impl Gem {
    /// An environment of this owner. Its other sandboxes are none.
    fn find(&self, owner: Owner, id: &str) -> Result<Arc<Hosted>, Failure> {
        match self.0.service.look(owner, id) {
            Ok(hosted) if hosted.player.get().is_some() => Ok(hosted),
            Ok(_) => Err(Failure::missing("this sandbox_id is no environment's")),
            Err(missing) => Err(match self.0.service.ended(owner, id) {
                Some(ended) => Failure::gone(ended.why),
                None => missing.into(),
            }),
        }
    }

    /// The environment, and the right to ask it: one request at a time has it.
    fn turn(&self, owner: Owner, id: &str) -> Result<(Using, OwnedMutexGuard<Turn>), Failure> {
        let using = self.find(owner, id)?.begin();
        let turn = using.player.get().and_then(Player::turn);
        turn.map(|turn| (using, turn)).ok_or_else(|| {
            Failure::out_of_order("another request for it is under way; await its answer first")
        })
    }

    /// Asks, in a task of its own: where the client has gone, the answer is still taken, so that it
    /// is never taken for the next one's.
    async fn play<T: DeserializeOwned + Serialize + Send + 'static>(
        &self,
        using: Using,
        mut turn: OwnedMutexGuard<Turn>,
        line: Value,
        after: impl FnOnce(&T) -> Turn + Send + 'static,
    ) -> Answer {
        let service = self.0.service.clone();
        let asked = tokio::spawn(async move {
            let told = match using.player.get() {
                Some(player) => player.ask(&line).await.and_then(PlayError::read::<T>),
                None => Err(PlayError::Died(String::new())),
            };
            *turn = told.as_ref().map_or(Turn::Failed, after);
            if let Err(error) = &told
                && let Some(why) = error.why_over()
            {
                service.end(using.hosted(), why).await;
            }
            told
        });
        let told = asked.await.map_err(|error| PlayError::Died(error.to_string()))??;
        Ok(done(&told))
    }
}
