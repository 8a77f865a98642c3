//! Keeps an inbox open at every place where grants are published: one server, or each master of a cluster, because only
//! the node that runs a script counts who listens.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};

use super::grant::Granter;
use super::inbox;
use super::link::Shared;
use crate::backend::Place;
use crate::error::ConfigError;
use crate::event::Event;

/// Without any sign of a change the places are looked up so often: a master that got its first slots, say, and nobody
/// of this process has met it yet.
const LOOK_UP: Duration = Duration::from_secs(10);

/// However many signs there are, the places are looked up no more often.
const BETWEEN: Duration = Duration::from_millis(100);

/// What the first opening at a place came to.
type First = mpsc::UnboundedSender<Result<(), ConfigError>>;

/// Runs until it is aborted. `ready` hears of the first opening at every place; if one fails there is no session.
pub(super) async fn keep(granter: Granter, ready: oneshot::Sender<Result<(), ConfigError>>) {
    let mut keeper = Keeper {
        up: Arc::new(Up { shared: granter.shared().clone(), opened: AtomicBool::new(false) }),
        granter,
        inboxes: HashMap::new(),
        running: JoinSet::new(),
    };
    let opened = keeper.open_all().await;
    let failed = opened.is_err();
    drop(ready.send(opened));
    if !failed {
        keeper.follow().await;
    }
}

struct Keeper {
    granter: Granter,
    up: Arc<Up>,
    inboxes: HashMap<Place, AbortHandle>,
    /// Ended with this value.
    running: JoinSet<()>,
}

impl Keeper {
    async fn open_all(&mut self) -> Result<(), ConfigError> {
        let places = self
            .shared()
            .own
            .places()
            .await
            .map_err(|failure| ConfigError::Connect(failure.error))?;
        let (first, mut firsts) = mpsc::unbounded_channel();
        self.be_at(&places, Some(&first));
        for _ in &places {
            // All have a sender, and none is dropped without a word.
            if let Some(opened) = firsts.recv().await {
                opened?;
            }
        }
        Ok(())
    }

    async fn follow(&mut self) {
        let shared = self.shared().clone();
        loop {
            // Either is as good.
            drop(tokio::time::timeout(LOOK_UP, shared.backend.places_changed()).await);
            // Nobody answers: then all stays as it is, and the failures of the inboxes bring us back.
            if let Ok(places) = shared.own.places().await {
                self.be_at(&places, None);
            }
            tokio::time::sleep(BETWEEN).await;
        }
    }

    fn be_at(&mut self, places: &[Place], first: Option<&First>) {
        let up = self.up.clone();
        self.inboxes.retain(|place, running| {
            let stays = places.contains(place);
            if !stays {
                running.abort();
                up.forget(place);
            }
            stays
        });
        for place in places {
            if !self.inboxes.contains_key(place) {
                self.up.set(place, false);
                let keeping = inbox::keep(
                    self.granter.clone(),
                    place.clone(),
                    self.up.clone(),
                    first.cloned(),
                );
                self.inboxes.insert(place.clone(), self.running.spawn(keeping));
            }
        }
    }

    fn shared(&self) -> &Arc<Shared> {
        self.granter.shared()
    }
}

/// Notes which inboxes are up, and tells when all are, or no longer.
pub(super) struct Up {
    shared: Arc<Shared>,
    /// All were up once.
    opened: AtomicBool,
}

impl Up {
    pub(super) fn set(&self, place: &Place, up: bool) {
        self.change(|heard| {
            heard.insert(place.clone(), up);
        });
    }

    fn forget(&self, place: &Place) {
        self.change(|heard| {
            heard.remove(place);
        });
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<Place, bool>)) {
        let (before, now) = self.shared.heard.change(change);
        // The first time is no news: the session opens.
        let opened = self.opened.fetch_or(now, Ordering::Relaxed);
        if opened && now != before {
            self.shared.events.emit(if now { &Event::InboxUp } else { &Event::InboxDown });
        }
    }
}
