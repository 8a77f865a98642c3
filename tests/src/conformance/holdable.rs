//! What a primitive has to say of itself to be tested.

use std::time::Duration;

use leasehold_runtime::{
    AcquireError, AdoptError, Guard, LostReason, Mode, Options, Owner, ReleaseError,
};

use super::Client;

/// How a hold ends by itself.
#[derive(Clone, Copy, Debug)]
pub enum Lease {
    /// Renewed by the watchdog.
    Renewed(Duration),
    /// Never renewed.
    Fixed(Duration),
}

impl Lease {
    /// Long enough that no scenario meets its end.
    pub const LONG: Self = Self::Renewed(Duration::from_secs(30));

    /// As options of a primitive.
    pub fn options(self) -> Options {
        match self {
            Self::Renewed(lease) => Options::default().lease(lease),
            Self::Fixed(lease) => Options::default().fixed(lease),
        }
    }
}

/// Something that can be held: one way to take one object of one name.
///
/// What excludes nobody (the read side) runs the parts `held` and `crowd` only. The read side of the
/// object answers or panics; what an answer says of a cool-down or a queue is the primitive's matter.
pub trait Holdable: Clone + Send + Sync + 'static {
    /// What a take gives.
    type Hold: Hold;

    /// The object of this name, in this client. No I/O.
    fn open(client: &Client, name: &str, lease: Lease) -> Self;

    /// The key that is there while somebody holds.
    fn key(name: &str) -> Vec<u8>;

    /// Whether a key may outlive the last hold: fence memory, and the marks of cancelled acquires.
    fn may_stay(key: &[u8]) -> bool {
        key.ends_with(b":token") || key.ends_with(b":gone")
    }

    /// The fencing token of a hold, where holds have one.
    fn token(hold: &Self::Hold) -> Option<u64>;

    /// Takes it without waiting; `None` if busy.
    fn try_acquire(&self) -> impl Future<Output = Result<Option<Self::Hold>, AcquireError>> + Send;

    /// Takes it, waiting at most so long.
    fn acquire_within(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Self::Hold, AcquireError>> + Send;

    /// Whether somebody holds.
    fn is_locked(&self) -> impl Future<Output = bool> + Send;

    /// How long the longest present hold lasts if it is not renewed.
    fn remaining(&self) -> impl Future<Output = Option<Duration>> + Send;

    /// How many holds the server has.
    fn holds(&self) -> impl Future<Output = usize> + Send;

    /// The trace of the newest holder.
    fn holder(&self) -> impl Future<Output = Option<String>> + Send;

    /// The traces of all waiters, the first to be granted first.
    fn waiting(&self) -> impl Future<Output = Vec<String>> + Send;

    /// Ends what is held, by an operator; whether there was anything.
    fn force_release(&self) -> impl Future<Output = bool> + Send;
}

/// What a take gives.
pub trait Hold: Send + Sync + 'static {
    /// Releases, and says what became of it.
    fn release(self) -> impl Future<Output = Result<(), ReleaseError>> + Send;

    /// Whether it is held, by its own clock.
    fn is_held(&self) -> bool;

    /// Resolves when it is lost.
    fn lost(&self) -> impl Future<Output = LostReason> + Send;

    /// Names it to people.
    fn trace(&self) -> String;
}

/// What an owner enters again.
pub trait Reentrant: Holdable {
    /// The same, taken as this owner.
    fn acquire_by(
        &self,
        owner: &Owner,
    ) -> impl Future<Output = Result<Option<Self::Hold>, AcquireError>> + Send;

    /// Goes on with the hold of this owner.
    fn adopt(&self, owner: &Owner) -> impl Future<Output = Result<Self::Hold, AdoptError>> + Send;

    /// Whose hold it is.
    fn owner(hold: &Self::Hold) -> Owner;
}

impl<M: Mode> Hold for Guard<M> {
    async fn release(self) -> Result<(), ReleaseError> {
        Self::release(self).await
    }

    fn is_held(&self) -> bool {
        self.is_held()
    }

    async fn lost(&self) -> LostReason {
        self.lost().await
    }

    fn trace(&self) -> String {
        self.trace().to_string()
    }
}
