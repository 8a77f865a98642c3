//! Keeps the inbox open: proves it, opens it again when it breaks, and has every waiter checked whenever messages may
//! have been lost.

use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_lua::wire::Push;
use tokio::sync::{mpsc, oneshot};

use super::grant::Granter;
use super::link::Shared;
use crate::backend::{Failure, InboxEvent, Subscription};
use crate::clock::{Backoff, random};
use crate::error::{BackendErrorKind, ConfigError};
use crate::event::Event;

#[derive(Debug)]
enum Signal {
    Proof(String),
    Down,
}

/// Runs until it is aborted. `ready` hears of the first opening; if that fails there is no session.
pub(super) async fn keep(granter: Granter, ready: oneshot::Sender<Result<(), ConfigError>>) {
    let shared = granter.shared().clone();
    let mut pauses = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));
    let mut ready = Some(ready);
    loop {
        let (signal, mut signals) = mpsc::unbounded_channel();
        match open(&granter, signal, &mut signals).await {
            Ok(subscription) => {
                pauses.reset();
                shared.inbox_up.store(true, Ordering::Relaxed);
                match ready.take() {
                    Some(ready) => drop(ready.send(Ok(()))),
                    None => shared.events.emit(&Event::InboxUp),
                }
                recheck(&granter);
                tokio::select! {
                    () = until_down(&mut signals) => {}
                    () = demoted(&shared) => {}
                }
                drop(subscription);
                shared.inbox_up.store(false, Ordering::Relaxed);
                shared.events.emit(&Event::InboxDown);
                recheck(&granter);
            }
            Err(failure) => {
                if let Some(ready) = ready.take() {
                    drop(ready.send(Err(refusal(failure))));
                    return;
                }
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
/// anew. Not more than once a second: it may be long until there is a master again.
async fn demoted(shared: &Shared) {
    tokio::time::sleep(Duration::from_secs(1)).await;
    shared.demoted.notified().await;
    shared.own.reopen();
}

async fn until_down(signals: &mut mpsc::UnboundedReceiver<Signal>) {
    while let Some(Signal::Proof(_)) = signals.recv().await {}
}

fn refusal(failure: Failure) -> ConfigError {
    if matches!(failure.error.kind(), BackendErrorKind::Unreachable | BackendErrorKind::Auth) {
        return ConfigError::Connect(failure.error);
    }
    ConfigError::Inbox(failure.error)
}

/// Subscribes, and proves with a message of its own that messages arrive: a connection may confirm a subscription and
/// still deliver nothing.
async fn open(
    granter: &Granter,
    signal: mpsc::UnboundedSender<Signal>,
    signals: &mut mpsc::UnboundedReceiver<Signal>,
) -> Result<Subscription, Failure> {
    let shared = granter.shared();
    shared.own.open().await?;
    let receiver = granter.clone();
    let deliver = move |event| match event {
        InboxEvent::Push(Push::Proof { nonce }) => drop(signal.send(Signal::Proof(nonce))),
        InboxEvent::Push(push) => receiver.receive(push),
        InboxEvent::Down => drop(signal.send(Signal::Down)),
    };
    let timeouts = shared.timeouts();
    let subscription = shared.backend.inbox(&shared.identity.inbox, timeouts).open(deliver).await?;
    let nonce = format!("{:016x}", random());
    if shared.own.publish(&shared.identity.inbox, &Push::proof(&nonce)).await? == 0 {
        // Even if the proof arrived, through a replica: nobody listens where grants are published.
        shared.own.reopen();
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
