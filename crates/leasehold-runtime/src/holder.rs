//! The read side: who holds, who waits. What other processes wrote is shown as it is, never trusted.

use std::fmt;
use std::time::Duration;

use leasehold_lua::holders::Listed;
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
    member: Member,
}

/// I19: what names a hold on the server, for the call that ends it; `Debug` shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
struct Member(Vec<u8>);

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("_")
    }
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
            member: Member(Vec::new()),
        }
    }
}

impl Holder {
    /// For primitives: one of many holds, as an inspect script listed it at `now_us`, server clock.
    #[doc(hidden)]
    pub fn from_listed(listed: &Listed, now_us: u64) -> Self {
        let now_ms = now_us / 1000;
        let since = |start: u64, end: u64| Duration::from_millis(end.saturating_sub(start));
        // Without its note nobody knows since when.
        let since_ms = if listed.since_ms == 0 { now_ms } else { listed.since_ms };
        let (held_for, remaining) = (since(since_ms, now_ms), since(now_ms, listed.deadline_ms));
        let cooling: &[u8] = if listed.cooling { b"-" } else { b"" };
        let member = Member([cooling, &listed.id].concat());
        Self { member, ..Self::new(&listed.note, held_for, remaining, 1) }
    }

    /// For primitives: what ends just this hold by force, if it came from [`from_listed`](Self::from_listed).
    #[doc(hidden)]
    pub fn member(&self) -> &[u8] {
        &self.member.0
    }

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
    /// Its place in the queue.
    pub(crate) ticket: u64,
}

impl Waiter {
    /// For primitives: names it, together with its trace, for the call that cancels it.
    #[doc(hidden)]
    pub fn ticket(&self) -> u64 {
        self.ticket
    }
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
                    ticket: waiting.ticket,
                }
            })
            .collect();
        Self { length: reply.length, waiters }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_lua::Share;

    fn listed(cooling: bool, since_ms: u64) -> Listed {
        let note = Note { pid: 7, label: "import".into(), ..Note::default() }.encode();
        let id = b"secret|1|r|i".to_vec();
        Listed { id, cooling, share: Share::Read, deadline_ms: 1_500, since_ms, note }
    }

    #[test]
    fn one_of_many_holders_has_its_own_times_and_does_not_print_its_acquisition() {
        let holder = Holder::from_listed(&listed(false, 400), 1_000_999);
        assert_eq!(holder.held_for, Duration::from_millis(600));
        assert_eq!(holder.remaining, Duration::from_millis(500));
        assert_eq!(
            (holder.pid, &*holder.label, holder.member()),
            (7, "import", &b"secret|1|r|i"[..])
        );
        assert!(!format!("{holder:?} {holder}").contains("secret"), "I19");
    }

    #[test]
    fn a_hold_without_its_note_and_a_cool_down_are_listed_too() {
        let holder = Holder::from_listed(&listed(true, 0), 2_000_000);
        assert_eq!((holder.held_for, holder.remaining), (Duration::ZERO, Duration::ZERO));
        assert_eq!(holder.member(), b"-secret|1|r|i");
    }
}
