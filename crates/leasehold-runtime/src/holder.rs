//! The read side: who holds, who waits. What other processes wrote is shown as it is, never trusted.

use std::fmt;
use std::time::Duration;

use leasehold_lua::wire::Note;

/// Who holds a lock.
///
/// It is what that process said of itself. `trace` names the acquisition and appears in that process's
/// [`Guard`](crate::Guard) too; it is not the acquisition's id and gives no power over it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// [`Options::label`](crate::Options::label) of the holder.
    pub label: String,
    /// Host name.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// Names the acquisition.
    pub trace: Trace,
    /// For how long it has held (server clock).
    pub held_for: Duration,
    /// How long the hold lasts if it is not renewed.
    pub remaining: Duration,
    /// How many live entries the hold has: more than one with re-entry.
    pub entries: usize,
    pub(crate) session: u64,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_who(f, &self.label, &self.host, self.pid)?;
        write!(f, " for {:?}", self.held_for)
    }
}

fn write_who(f: &mut fmt::Formatter<'_>, label: &str, host: &str, pid: u32) -> fmt::Result {
    if !label.is_empty() {
        write!(f, "{label} on ")?;
    }
    write!(f, "{}, pid {pid}", if host.is_empty() { "an unknown host" } else { host })
}

impl Holder {
    /// From the newest entry's note. A note of another version shows as an unknown holder.
    pub(crate) fn new(
        note: &[u8],
        held_for: Duration,
        remaining: Duration,
        entries: usize,
    ) -> Self {
        let note = Note::decode(note).unwrap_or_default();
        Self {
            label: note.label,
            host: note.host,
            pid: note.pid,
            trace: Trace(note.trace),
            held_for,
            remaining,
            entries,
            session: note.session,
        }
    }
}

impl Holder {
    /// For primitives: what an inspect script answered, if somebody holds (or held until the present cool-down).
    #[doc(hidden)]
    pub fn from_inspection(found: &leasehold_lua::mutex::Inspection) -> Option<Self> {
        use leasehold_lua::mutex::HoldState;
        if found.state == HoldState::Free {
            return None;
        }
        let newest = found.entries.iter().max_by_key(|entry| entry.deadline_ms);
        let now_ms = found.now_us / 1000;
        let held_for = newest.map_or(0, |entry| now_ms.saturating_sub(entry.since_ms));
        let note = newest.map_or(&[][..], |entry| &entry.note);
        let remaining = Duration::from_millis(found.left_ms);
        Some(Self::new(note, Duration::from_millis(held_for), remaining, found.entries.len()))
    }
}

/// A random number that names an acquisition to people.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Trace(pub(crate) u64);

/// As it is displayed, so that logs of both kinds can be put together.
impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trace({self})")
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The queue of a lock at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Queue {
    /// How many wait, dead ones that were not noticed yet included.
    pub length: u64,
    /// The first of them (at most 128), the next to be granted first.
    pub waiters: Vec<Waiter>,
}

/// Who waits for a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// How many stand before it.
    pub position: u64,
    /// [`Options::label`](crate::Options::label) of the waiter.
    pub label: String,
    /// Host name.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// Names the acquisition.
    pub trace: Trace,
    /// For how long it has waited (server clock).
    pub waiting_for: Duration,
    /// It has given a sign of life within its deadline.
    pub alive: bool,
}

impl Queue {
    /// For primitives: what a queue script answered.
    #[doc(hidden)]
    pub fn from_reply(reply: leasehold_lua::mutex::QueueReply) -> Self {
        let now_us = reply.now_us;
        let waiters = (0..)
            .zip(reply.waiting)
            .map(|(position, waiting)| {
                let note = Note::decode(&waiting.note).unwrap_or_default();
                Waiter {
                    position,
                    label: note.label,
                    host: note.host,
                    pid: note.pid,
                    trace: Trace(note.trace),
                    waiting_for: Duration::from_micros(now_us.saturating_sub(waiting.ticket)),
                    alive: waiting.deadline_ms > now_us / 1000,
                }
            })
            .collect();
        Self { length: reply.length, waiters }
    }
}
