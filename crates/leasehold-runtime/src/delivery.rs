//! Sending one call until it is answered: the same patience for every verb.

use std::time::Duration;

use leasehold_lua::{Call, Reply};

use crate::clock::{Backoff, Moment, now, sleep_until};
use crate::error::{BackendError, BackendErrorKind};
use crate::session::Link;

/// A copy with less time than this is not sent: it would hardly be answered, and leave a doubt whether it ran.
const SHORTEST_TRY: Duration = Duration::from_millis(10);

/// An answer.
#[derive(Debug)]
pub(crate) struct Delivered {
    pub(crate) reply: Reply,
    /// When the answered copy was sent: its lease counts from here.
    pub(crate) sent: Moment,
    /// An earlier copy got no answer and may have run, or may still run.
    pub(crate) doubtful: bool,
}

/// No answer.
#[derive(Debug)]
pub(crate) struct Undelivered {
    pub(crate) error: BackendError,
    /// A copy may have run, or may still run.
    pub(crate) doubtful: bool,
}

/// Sends a call, and again while that may help, until `until`. Every script is idempotent by acquisition id (I6), so a
/// resend is harmless; `doubt` is told before one that an earlier copy may be under way.
///
/// A broken link is tried again at once (the first command after an idle cut always meets one), a replica once (the
/// connection is made anew, perhaps to the new master); everything else that passes is tried after a pause of 50 ms to
/// 1 s. What does not pass ends it at once.
///
/// A copy that the end of the wait cuts short says nothing of the server: what an earlier one was answered is told then.
pub(crate) async fn deliver(
    link: &Link,
    call: &Call,
    until: Moment,
    mut doubt: impl FnMut(),
) -> Result<Delivered, Undelivered> {
    if Link::check_runtime().is_err() {
        return Err(Undelivered { error: BackendError::no_runtime(), doubtful: false });
    }
    let mut pauses = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
    let (mut doubtful, mut hurried, mut read_only) = (false, false, false);
    let mut said = None;
    loop {
        let sent = now();
        let failure = match link.commands().call(call, until.since(sent)).await {
            Ok(reply) => return Ok(Delivered { reply, sent, doubtful }),
            Err(failure) => failure,
        };
        link.shared().answered_with(&failure);
        if failure.may_have_run {
            doubtful = true;
            doubt();
        }
        let error = match said.take() {
            Some(earlier) if failure.silent && until.passed() => earlier,
            Some(_) | None => failure.error,
        };
        let replica = error.kind() == BackendErrorKind::ReadOnly;
        if !failure.transient || (replica && read_only) || until.passed() {
            return Err(Undelivered { error, doubtful });
        }
        if failure.connection_spent && !hurried {
            (hurried, read_only) = (true, read_only || replica);
            continue;
        }
        read_only |= replica;
        let resume = now().plus(pauses.pause());
        if resume.plus(SHORTEST_TRY) >= until {
            sleep_until(until).await;
            return Err(Undelivered { error, doubtful });
        }
        said = Some(error);
        tokio::select! {
            () = sleep_until(resume) => {}
            // An inbox is open again, so its server answers again.
            () = link.shared().came_back.notified() => {}
        }
    }
}
