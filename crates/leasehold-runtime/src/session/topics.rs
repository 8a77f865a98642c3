//! The table of topics: which tasks of this session wait for what, and when the next look is due.
//!
//! Tasks that wait for one topic share an entry: one uuid at the server, one look at a time. Each of them knows the round
//! that it waits for, which is the one that the first look after its coming found: a look that was sent before says
//! nothing about what it came for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use uuid::Uuid;

use crate::clock::{Backoff, Moment, now};
use crate::engine::{GOES_ON, Look, News, Over, Topic, WaitError};
use crate::error::{BackendError, BackendErrorKind};

/// Where a waiting task hears how it ended.
pub(crate) type Tell = oneshot::Sender<Result<Over, WaitError>>;

#[derive(Debug)]
struct Waiter {
    tell: Tell,
    /// How many looks had been sent when it came.
    since: u64,
    /// The round that it waits for.
    seen: Option<u64>,
}

#[derive(Debug)]
struct Entry {
    topic: Arc<dyn Topic>,
    uuid: Uuid,
    waiters: BTreeMap<u64, Waiter>,
    next_number: u64,
    /// How many looks were sent.
    looks: u64,
    look_at: Moment,
    looking: bool,
    /// Asked for while a look was under way: no later than this is the next.
    rush: Moment,
    pauses: Backoff,
    /// What the last push said: it may have overtaken the answer to the look that entered us.
    pushed: Option<News>,
    failure: Option<(BackendErrorKind, String)>,
}

#[derive(Debug, Default)]
struct Table {
    closed: bool,
    entries: HashMap<Arc<[u8]>, Entry>,
    keys: HashMap<Uuid, Arc<[u8]>>,
    due: BTreeSet<(Moment, Arc<[u8]>)>,
    /// The thread wakes by then: only what is due earlier has to wake it.
    wakes_by: Moment,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Topics {
    table: Mutex<Table>,
}

/// A task is in the table.
#[derive(Debug)]
pub(crate) struct Entered {
    pub(crate) entry: Uuid,
    pub(crate) number: u64,
    /// The thread has to wake earlier than it knew.
    pub(crate) wake: bool,
}

/// What a waiting task knows when its time is over.
#[derive(Debug)]
pub(crate) enum Knows {
    /// The round that it waits for.
    Round,
    /// Nothing: no look was answered since it came. With what went wrong last.
    Nothing(Option<BackendError>),
}

/// A look that is due.
#[derive(Debug)]
pub(crate) struct DueLook {
    pub(crate) key: Arc<[u8]>,
    pub(crate) topic: Arc<dyn Topic>,
    pub(crate) uuid: Uuid,
    number: u64,
}

/// An entry that nobody here waits for any more; the server may still have it.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) topic: Arc<dyn Topic>,
    pub(crate) uuid: Uuid,
}

/// Whom to tell what, once the table is free again.
type Told = Vec<(Tell, Result<Over, WaitError>)>;

fn tell(told: Told) {
    for (tell, outcome) in told {
        drop(tell.send(outcome)); // Nobody receives: it was dropped just now.
    }
}

impl Topics {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many tasks wait.
    pub(crate) fn len(&self) -> usize {
        self.table().entries.values().map(|entry| entry.waiters.len()).sum()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.table().closed
    }

    /// A task begins to wait: a look is due at once, or behind the one that is under way. `None` after a shutdown.
    pub(crate) fn enter(&self, topic: &Arc<dyn Topic>, tell: Tell) -> Option<Entered> {
        let mut table = self.table();
        if table.closed {
            return None;
        }
        let key = topic.key().clone();
        let Table { entries, keys, .. } = &mut *table;
        let entry = entries.entry(key.clone()).or_insert_with(|| Entry::new(topic.clone()));
        keys.insert(entry.uuid, key.clone());
        let (uuid, number) = (entry.uuid, entry.next_number);
        entry.next_number += 1;
        entry.waiters.insert(number, Waiter { tell, since: entry.looks, seen: None });
        let wake = table.look_by(&key, now());
        Some(Entered { entry: uuid, number, wake })
    }

    /// What this task knows; `None`: it was told something already.
    pub(crate) fn knows(&self, key: &Arc<[u8]>, uuid: Uuid, number: u64) -> Option<Knows> {
        let table = self.table();
        let entry = table.entries.get(key).filter(|entry| entry.uuid == uuid)?;
        Some(match entry.waiters.get(&number)?.seen {
            Some(_) => Knows::Round,
            None => Knows::Nothing(entry.failure.as_ref().map(again)),
        })
    }

    /// A task waits no more. With the last one its entry ends.
    pub(crate) fn leave(&self, key: &Arc<[u8]>, uuid: Uuid, number: u64) -> Option<Left> {
        let mut table = self.table();
        let entry = table.entries.get_mut(key).filter(|entry| entry.uuid == uuid)?;
        entry.waiters.remove(&number)?;
        if !entry.waiters.is_empty() {
            return None;
        }
        let looked = entry.looks > 0;
        table.end(key).filter(|_| looked)
    }

    /// When the next look is due. The thread asks before it sleeps, and wakes by then.
    pub(crate) fn next_look(&self) -> Moment {
        let mut table = self.table();
        table.wakes_by = table.due.first().map_or(Moment::NEVER, |(at, _)| *at);
        table.wakes_by
    }

    /// Takes the looks that are due. Each topic is left alone until it is told how that went.
    pub(crate) fn due_looks(&self) -> Vec<DueLook> {
        let (mut table, at) = (self.table(), now());
        let mut looks = Vec::new();
        while table.due.first().is_some_and(|(first, _)| *first <= at) {
            let Some((_, key)) = table.due.pop_first() else { break };
            let Some(entry) = table.entries.get_mut(&key) else { continue };
            entry.looking = true;
            entry.looks += 1;
            let (topic, uuid, number) = (entry.topic.clone(), entry.uuid, entry.looks);
            looks.push(DueLook { key, topic, uuid, number });
        }
        looks
    }

    /// A look was answered; `next` is when the following is due, `None`: after a pause that grows. Answers what to take
    /// away from the server.
    pub(crate) fn looked(&self, due: &DueLook, look: Look, next: Option<Moment>) -> Option<Left> {
        let mut table = self.table();
        let entered = look.news.state == GOES_ON;
        let Some(entry) = table.entry_of(due) else {
            // Everybody left while it was under way.
            return entered.then(|| Left { topic: due.topic.clone(), uuid: due.uuid });
        };
        entry.failure = None;
        let told = entry.judge(due.number, look.news);
        let left = table.looked(due, next).filter(|_| entered);
        drop(table);
        tell(told);
        left
    }

    /// A look was not answered, or refused: then `refusal` ends the waiting of those that it was for.
    pub(crate) fn failed(
        &self,
        due: &DueLook,
        error: &BackendError,
        refusal: bool,
    ) -> Option<Left> {
        let mut table = self.table();
        let entry = table.entry_of(due)?;
        let failure = (error.kind(), error.to_string());
        let mut told = Told::new();
        if refusal {
            for waiter in entry.take(|waiter| waiter.since < due.number) {
                told.push((waiter.tell, Err(WaitError::Backend(again(&failure)))));
            }
        }
        entry.failure = Some(failure);
        let left = table.looked(due, None);
        drop(table);
        tell(told);
        left
    }

    /// A push arrived: a round is over. Answers whether the thread has to wake earlier than it knew.
    pub(crate) fn pushed(&self, uuid: Uuid, news: News) -> bool {
        let mut table = self.table();
        let Some(key) = table.keys.get(&uuid).cloned() else { return false };
        let Some(entry) = table.entries.get_mut(&key) else { return false };
        entry.pushed = Some(news);
        let told = entry.those_of_the_round(news);
        let wake = if entry.waiters.is_empty() {
            // The push took our entry at the server away.
            drop(table.end(&key));
            false
        } else {
            table.look_by(&key, now())
        };
        drop(table);
        tell(told);
        wake
    }

    /// Messages may have been lost: look at everything.
    pub(crate) fn look_at_all_now(&self) {
        let mut table = self.table();
        let keys: Vec<_> = table.entries.keys().cloned().collect();
        for key in keys {
            if let Some(entry) = table.entries.get_mut(&key) {
                entry.pauses.reset();
            }
            table.look_by(&key, now());
        }
    }

    /// Nobody enters any more; who waits is told, and what is left at the server is handed over to be taken away.
    pub(crate) fn close(&self) -> Vec<Left> {
        let mut table = self.table();
        table.closed = true;
        table.due.clear();
        table.keys.clear();
        let (mut told, mut left) = (Told::new(), Vec::new());
        for (_, mut entry) in table.entries.drain() {
            let waiters = entry.take(|_| true);
            told.extend(waiters.into_iter().map(|waiter| (waiter.tell, Err(WaitError::Closed))));
            if entry.looks > 0 {
                left.push(Left { topic: entry.topic, uuid: entry.uuid });
            }
        }
        drop(table);
        tell(told);
        left
    }
}

/// Errors go to many.
fn again((kind, words): &(BackendErrorKind, String)) -> BackendError {
    let words = words.strip_prefix(&kind.to_string()).unwrap_or(words);
    BackendError::new(*kind, words.strip_prefix(": ").unwrap_or(words))
}

impl Entry {
    fn new(topic: Arc<dyn Topic>) -> Self {
        Self {
            topic,
            uuid: Uuid::new_v4(),
            waiters: BTreeMap::new(),
            next_number: 0,
            looks: 0,
            look_at: Moment::NEVER,
            looking: false,
            rush: Moment::NEVER,
            pauses: Backoff::new(Duration::from_millis(10), Duration::from_millis(200)),
            pushed: None,
            failure: None,
        }
    }

    fn take(&mut self, which: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
        let taken: Vec<_> =
            self.waiters.iter().filter(|(_, one)| which(one)).map(|(number, _)| *number).collect();
        taken.iter().filter_map(|number| self.waiters.remove(number)).collect()
    }

    /// Who came before the look was sent: the round goes on, or waiting has ended.
    fn judge(&mut self, look: u64, news: News) -> Told {
        let goes_on = news.state == GOES_ON;
        let ended = |seen: Option<u64>| !goes_on || seen.is_some_and(|round| round != news.round);
        let over = self.take(|waiter| waiter.since < look && ended(waiter.seen));
        let mut told: Told = over.into_iter().map(|waiter| waiter.over(news)).collect();
        for waiter in self.waiters.values_mut().filter(|waiter| waiter.since < look) {
            waiter.seen = Some(news.round);
        }
        if let Some(pushed) = self.pushed {
            told.extend(self.those_of_the_round(pushed));
        }
        told
    }

    /// How a round ended stays true, whenever it is heard.
    fn those_of_the_round(&mut self, news: News) -> Told {
        let over = self.take(|waiter| waiter.seen == Some(news.round));
        over.into_iter().map(|waiter| waiter.over(news)).collect()
    }
}

impl Waiter {
    fn over(self, news: News) -> (Tell, Result<Over, WaitError>) {
        (self.tell, Ok(Over { waited_for: self.seen, news }))
    }
}

impl Table {
    fn entry_of(&mut self, due: &DueLook) -> Option<&mut Entry> {
        self.entries.get_mut(&due.key).filter(|entry| entry.uuid == due.uuid)
    }

    fn end(&mut self, key: &Arc<[u8]>) -> Option<Left> {
        let (key, entry) = self.entries.remove_entry(key)?;
        self.keys.remove(&entry.uuid);
        self.due.remove(&(entry.look_at, key));
        Some(Left { topic: entry.topic, uuid: entry.uuid })
    }

    /// A look is over: the next one is due, unless nobody waits any more.
    fn looked(&mut self, due: &DueLook, next: Option<Moment>) -> Option<Left> {
        let entry = self.entry_of(due)?;
        if entry.waiters.is_empty() {
            return self.end(&due.key);
        }
        entry.looking = false;
        let regular = match next {
            Some(next) => {
                entry.pauses.reset();
                next
            }
            None => now().plus(entry.pauses.pause()),
        };
        entry.look_at = regular.min(std::mem::replace(&mut entry.rush, Moment::NEVER));
        let at = entry.look_at;
        self.due.insert((at, due.key.clone()));
        None
    }

    /// Brings a look forward; answers whether the thread has to wake earlier than it knew.
    fn look_by(&mut self, key: &Arc<[u8]>, at: Moment) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        if entry.looking {
            entry.rush = entry.rush.min(at);
            return false;
        }
        if entry.look_at <= at {
            return false;
        }
        self.due.remove(&(entry.look_at, key.clone()));
        entry.look_at = at;
        self.due.insert((at, key.clone()));
        at < self.wakes_by
    }
}

#[cfg(test)]
mod tests;
