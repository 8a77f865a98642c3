//! Looking at topics and leaving them, on the thread: nothing depends on a message (I11).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use uuid::Uuid;

use super::grant::Granter;
use super::link::Shared;
use super::topics::{DueLook, Left};
use crate::backend::Failure;
use crate::clock::{Backoff, jittered, now, sleep_until};
use crate::engine::Listener;
use crate::error::BackendError;

/// Looks once for all tasks of this session that wait for the topic, and sets when it is due again.
pub(super) async fn look(granter: Granter, due: DueLook) {
    let shared = granter.shared().clone();
    let mut name = Uuid::encode_buffer();
    let listener = listener(&shared, due.uuid, &mut name);
    let call = due.topic.look(listener, shared.terms());
    shared.counters.looks.fetch_add(1, Ordering::Relaxed);
    let left = match shared.own.call(&call, shared.settings.response_timeout).await {
        Ok(reply) => match due.topic.read(&reply) {
            Ok(look) => {
                // While pushes do not arrive the looks come as fast as their pauses allow.
                let up = shared.hears_of(&due.key);
                let next = up.then(|| now().plus(pause(&shared, look.check_ms)));
                shared.topics.looked(&due, look, next)
            }
            Err(error) => shared.topics.failed(&due, &BackendError::from(error), true),
        },
        Err(failure) => {
            shared.answered_with(&failure);
            shared.topics.failed(&due, &failure.error, !failure.transient)
        }
    };
    if let Some(left) = left {
        granter.leave(left);
    }
    shared.poke.notify_one();
}

fn listener<'a>(shared: &'a Shared, uuid: Uuid, name: &'a mut [u8; 45]) -> Listener<'a> {
    Listener { uuid: uuid.simple().encode_lower(name), inbox: &shared.identity.inbox }
}

/// The regular pause is jittered downward, so that what started together does not go on in step; the end of a topic is
/// met exactly.
fn pause(shared: &Shared, check_ms: u64) -> Duration {
    let pause = Duration::from_millis(check_ms);
    if pause >= shared.settings.check_every {
        jittered(pause)
    } else {
        pause + Duration::from_millis(1)
    }
}

/// Takes an entry away from the server; tried again until its deadline has ended it anyway. Answers whether it is surely
/// gone.
pub(super) async fn leave(shared: Arc<Shared>, left: Left) -> bool {
    let mut name = Uuid::encode_buffer();
    let call = left.topic.leave(listener(&shared, left.uuid, &mut name));
    let until = now().plus(shared.settings.waiter_deadline);
    let mut pauses = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));
    loop {
        let failure: Failure = match shared.own.call(&call, until.left()).await {
            Ok(_) => return true,
            Err(failure) => failure,
        };
        let resume = now().plus(pauses.pause());
        if !failure.transient || resume >= until {
            return false;
        }
        sleep_until(resume).await;
    }
}
