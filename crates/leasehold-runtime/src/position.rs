//! The position of a wait, as the answers that the wait gets anyway carry it.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use tokio::sync::watch;
use tokio_util::sync::ReusableBoxFuture;

use crate::options::whole_ms;

/// What is shown of a wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    /// How many stand before it; nothing before and after the wait.
    before: Option<u64>,
    returns: u32,
}

/// Shows what becomes of the waits of one view.
pub(crate) type Board = watch::Sender<Shown>;

/// Where a wait stands: how many are to be granted before it. Read it at any time with [`now`](Self::now), or as a stream
/// of changes.
///
/// It costs no command: the answer to the acquire says it, and so does each check, which runs at least once a second for
/// all waiters of the process on that name together. So it is as old as the last check, a second at the most while
/// Redis answers; the grant itself is not announced here, but by the acquire. Who leaves or comes back is counted at the
/// next check, and waiters that died are counted until they are noticed, so a position may also grow.
///
/// It follows the waits of one view. With several at a time it shows whichever was told last: take a view for each.
///
/// # Examples
/// ```no_run
/// # async fn run(mut position: leasehold_runtime::Position) {
/// while let Some(before) = position.next().await {
///     println!("{before} before us");
/// } // the wait is over
/// # }
/// ```
pub struct Position {
    shown: watch::Receiver<Shown>,
    changed: ReusableBoxFuture<'static, Changed>,
}

type Changed = (Result<(), watch::error::RecvError>, watch::Receiver<Shown>);

async fn changed(mut shown: watch::Receiver<Shown>) -> Changed {
    (shown.changed().await, shown)
}

impl Position {
    pub(crate) fn of(board: &Board) -> Self {
        Self::following(board.subscribe())
    }

    fn following(shown: watch::Receiver<Shown>) -> Self {
        Self { changed: ReusableBoxFuture::new(changed(shown.clone())), shown }
    }

    /// How many stood before it when it was last told; `None` while nobody waits. No round trip.
    pub fn now(&self) -> Option<u64> {
        self.shown.borrow().before
    }

    /// The next position that is told; of several since the last call, the newest. `None` when the wait is over, however
    /// it ended, and when its view is gone. A further wait of the same view can be followed after that.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn next(&mut self) -> Option<u64> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// How often this wait was taken for dead and came back: the process was silent for longer than the session's
    /// [`waiter_deadline`](crate::SessionBuilder::waiter_deadline), frozen or cut off. Meanwhile others may have passed
    /// it; since then it has stood at its old place. [`next`](Self::next) tells it with the position, even if that is the
    /// same as before.
    pub fn returns(&self) -> u32 {
        self.shown.borrow().returns
    }
}

/// The positions that [`next`](Position::next) tells.
impl Stream for Position {
    type Item = u64;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<u64>> {
        let this = self.get_mut();
        let (told, mut shown) = ready!(this.changed.poll(context));
        let before = if told.is_ok() { shown.borrow_and_update().before } else { None };
        this.changed.set(changed(shown));
        Poll::Ready(before)
    }
}

/// Tells both what is told from now on.
impl Clone for Position {
    fn clone(&self) -> Self {
        let mut shown = self.shown.clone();
        shown.mark_unchanged();
        Self::following(shown)
    }
}

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Position").field("now", &self.now()).finish_non_exhaustive()
    }
}

/// Through which one acquisition tells where it stands.
#[derive(Debug)]
pub(crate) struct Seat {
    board: Board,
    /// Nothing that arrives later is shown.
    over: AtomicBool,
    /// Server clock of its last sign of life; 0 before the first.
    seen_ms: AtomicU64,
    /// How often it came back.
    returns: AtomicU32,
}

impl Seat {
    pub(crate) fn at(board: Board) -> Self {
        Self { board, over: false.into(), seen_ms: 0.into(), returns: 0.into() }
    }

    /// The server has answered where it stands. Its deadline is reckoned as the scripts do it.
    pub(crate) fn told(&self, before: u64, now_us: u64, waiter_deadline: Duration) {
        let now_ms = now_us / 1000;
        let deadline_ms = |seen_ms: u64| seen_ms.saturating_add(whole_ms(waiter_deadline));
        // Under the board's lock, so that nothing is shown of a wait that is over.
        self.board.send_if_modified(|shown| {
            if self.over.load(Ordering::Relaxed) {
                return false;
            }
            let seen_ms = self.seen_ms.swap(now_ms, Ordering::Relaxed);
            let earlier = *shown;
            shown.before = Some(before);
            let returned = u32::from(seen_ms > 0 && deadline_ms(seen_ms) <= now_ms);
            shown.returns = self.returns.fetch_add(returned, Ordering::Relaxed) + returned;
            *shown != earlier
        });
    }

    fn end(&self) {
        self.board.send_if_modified(|shown| {
            self.over.store(true, Ordering::Relaxed);
            shown.before = None;
            true
        });
    }
}

/// A wait; over when it is dropped, whatever became of it.
#[derive(Debug)]
pub(crate) struct Waiting<'a>(pub(crate) Option<&'a Seat>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(seat) = self.0 {
            seat.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(10);
    const SECOND_US: u64 = 1_000_000;

    fn board() -> (Board, Position) {
        let board = Board::default();
        let position = Position::of(&board);
        (board, position)
    }

    #[tokio::test]
    async fn positions_are_told_until_the_wait_is_over() {
        let (board, mut position) = board();
        let seat = Seat::at(board.clone());
        assert_eq!(position.now(), None, "nobody waits");
        seat.told(2, SECOND_US, DEADLINE);
        assert_eq!((position.next().await, position.now()), (Some(2), Some(2)));
        seat.told(1, 2 * SECOND_US, DEADLINE);
        seat.told(0, 3 * SECOND_US, DEADLINE);
        assert_eq!(position.next().await, Some(0), "the newest");
        drop(Waiting(Some(&seat)));
        assert_eq!((position.next().await, position.now()), (None, None));
        seat.told(5, 4 * SECOND_US, DEADLINE);
        assert_eq!(position.now(), None, "an answer that comes after the end shows nothing");
        Seat::at(board).told(7, 5 * SECOND_US, DEADLINE);
        assert_eq!(position.next().await, Some(7), "a further wait");
    }

    #[tokio::test]
    async fn what_does_not_change_is_not_told() {
        let (board, mut position) = board();
        let seat = Seat::at(board);
        seat.told(2, SECOND_US, DEADLINE);
        assert_eq!(position.next().await, Some(2));
        seat.told(2, 2 * SECOND_US, DEADLINE);
        let told = tokio::time::timeout(Duration::from_millis(20), position.next()).await;
        assert!(told.is_err(), "{told:?}");
    }

    #[tokio::test]
    async fn a_return_is_told_even_at_the_same_position() {
        let (board, mut position) = board();
        let seat = Seat::at(board);
        seat.told(2, SECOND_US, DEADLINE);
        // The last millisecond of its life, and the first after it.
        seat.told(2, 11 * SECOND_US - 1, DEADLINE);
        assert_eq!((position.next().await, position.returns()), (Some(2), 0));
        seat.told(2, 21 * SECOND_US, DEADLINE);
        assert_eq!((position.next().await, position.returns()), (Some(2), 1));
        drop(Waiting(Some(&seat)));
        assert_eq!((position.next().await, position.returns()), (None, 1), "of the last wait");
        Seat::at(seat.board.clone()).told(2, 22 * SECOND_US, DEADLINE);
        assert_eq!((position.next().await, position.returns()), (Some(2), 0), "of this one");
    }

    #[tokio::test]
    async fn without_its_view_there_is_nothing_to_follow() {
        let (board, mut position) = board();
        let mut twin = position.clone();
        drop(board);
        assert_eq!((position.next().await, twin.next().await), (None, None));
    }
}
