//! The inbox at one place: proves it, opens it again when it breaks, and has every waiter checked whenever messages may
//! have been lost.

use std::sync::Arc;
use std::time::Duration;

use leasehold_lua::wire::Push;
use tokio::sync::mpsc;

use super::grant::Granter;
use super::inbox_keeper::Up;
use super::link::Shared;
use crate::backend::{Failure, InboxEvent, Place, Subscription};
use crate::clock::{Backoff, random};
use crate::error::{BackendErrorKind, ConfigError};

/// Where sentinels name the master, the inbox asks so often whether it is still where grants are published: calls may
/// have gone over to another server in the moment in which the inbox was opened.
const ASK_WHETHER_HEARD: Duration = Duration::from_secs(5);

#[derive(Debug)]
enum Signal {
    Proof(String),
    Down,
}

/// Runs until it is aborted. `first` hears of the first opening; if that fails, nobody opens again.
pub(super) async fn keep(
    granter: Granter,
    place: Place,
    up: Arc<Up>,
    mut first: Option<mpsc::UnboundedSender<Result<(), ConfigError>>>,
) {
    let shared = granter.shared().clone();
    let mut pauses = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));
    loop {
        let (signal, mut signals) = mpsc::unbounded_channel();
        match open(&granter, &place, signal, &mut signals).await {
            Ok(subscription) => {
                pauses.reset();
                up.set(&place, true);
                if let Some(first) = first.take() {
                    drop(first.send(Ok(())));
                }
                recheck(&granter);
                shared.came_back.notify_waiters();
                tokio::select! {
                    () = until_down(&mut signals) => {}
                    () = demoted(&shared, &place) => {}
                    () = unheard(&shared, &place) => {}
                    () = shared.backend.master_changed(shared.timeouts()) => {}
                }
                drop(subscription);
                up.set(&place, false);
                shared.backend.doubt_places();
                recheck(&granter);
            }
            Err(failure) => {
                if let Some(first) = first.take() {
                    drop(first.send(Err(refusal(failure))));
                    return;
                }
                shared.backend.doubt_places();
                tokio::time::sleep(pauses.pause()).await;
            }
        }
    }
}

/// Messages may have been lost: ask for everybody.
fn recheck(granter: &Granter) {
    granter.shared().forget_samples();
    granter.shared().registry.check_all_now();
    granter.shared().topics.look_at_all_now();
    granter.shared().poke.notify_one();
}

/// The inbox is at a server that is a replica now: no grant of the new master counts it, so both connections are made
/// anew. Not more than once a second: it may be long until there is a master again. (A node of a cluster that is a
/// replica now says who has its slots, and is left.)
async fn demoted(shared: &Shared, place: &Place) {
    if *place != Place::default() {
        return std::future::pending().await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    shared.demoted.notified().await;
    shared.own.reopen(place);
}

/// Resolves when grants are published where this inbox does not listen.
async fn unheard(shared: &Shared, place: &Place) {
    if !shared.backend.is_watched() {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(ASK_WHETHER_HEARD).await;
        let asked = Push::proof("still there?");
        if let Ok(0) = shared.own.publish(place, &shared.identity.inbox, &asked).await {
            shared.own.reopen(place);
            return;
        }
    }
}

async fn until_down(signals: &mut mpsc::UnboundedReceiver<Signal>) {
    while let Some(Signal::Proof(_)) = signals.recv().await {}
}

pub(super) fn refusal(failure: Failure) -> ConfigError {
    let kind = failure.error.kind();
    if matches!(
        kind,
        BackendErrorKind::Unreachable | BackendErrorKind::Tls | BackendErrorKind::Auth
    ) {
        return ConfigError::Connect(failure.error);
    }
    ConfigError::Inbox(failure.error)
}

/// Subscribes, and proves with a message of its own that messages arrive: a connection may confirm a subscription and
/// still deliver nothing.
async fn open(
    granter: &Granter,
    place: &Place,
    signal: mpsc::UnboundedSender<Signal>,
    signals: &mut mpsc::UnboundedReceiver<Signal>,
) -> Result<Subscription, Failure> {
    let shared = granter.shared();
    shared.own.open_at(place).await?;
    let receiver = granter.clone();
    let deliver = move |event| match event {
        InboxEvent::Push(Push::Proof { nonce }) => drop(signal.send(Signal::Proof(nonce))),
        InboxEvent::Push(push) => receiver.receive(push),
        InboxEvent::Down => drop(signal.send(Signal::Down)),
    };
    let timeouts = shared.timeouts();
    let inbox = shared.backend.inbox(place, &shared.identity.inbox, timeouts);
    let subscription = inbox.ok_or_else(Failure::undelivered)?.open(deliver).await?;
    let nonce = format!("{:016x}", random());
    if shared.own.publish(place, &shared.identity.inbox, &Push::proof(&nonce)).await? == 0 {
        // Even if the proof arrived, through a replica: nobody listens where grants are published.
        shared.own.reopen(place);
        return Err(Failure::undelivered());
    }
    let proven = async {
        loop {
            match signals.recv().await {
                Some(Signal::Proof(arrived)) if arrived == nonce => return true,
                Some(Signal::Proof(_)) => {}
                Some(Signal::Down) | None => return false,
            }
        }
    };
    match tokio::time::timeout(timeouts.response, proven).await {
        Ok(true) => Ok(subscription),
        Ok(false) | Err(_) => Err(Failure::undelivered()),
    }
}
