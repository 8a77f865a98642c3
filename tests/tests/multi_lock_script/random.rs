//! Random calls on the server and by the rules at once. A failure names its seed.

use std::time::Duration;

use leasehold_lua::Share;
use leasehold_lua::multi::MultiReply;
use leasehold_lua::reply::{AcquireReply, ReleaseReply, RenewReply};
use redis::Commands;

use crate::bench::{Bench, Element, OBJECTS, call, keys, release, try_one, verbs};
use crate::reference::{Hold, Object, compare, weight_of};

/// Steps of a case.
const STEPS: u32 = 40;
/// No call runs so shortly before a deadline: more than one takes on a loaded machine.
const CLEAR_MS: u64 = 400;

/// splitmix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn from(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        value ^ (value >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        let at = self.below(all.len() as u64);
        &all[usize::try_from(at).expect("an index")]
    }
}

pub(crate) struct Case<'a> {
    bench: &'a mut Bench,
    random: Random,
    objects: Vec<Object>,
    /// Every call so far.
    sent: Vec<(Vec<Element>, u64)>,
    ids: u64,
    log: Vec<String>,
}

impl<'a> Case<'a> {
    /// Runs one case; an error holds what was done.
    pub(crate) fn run(bench: &'a mut Bench, seed: u64) -> Result<(), String> {
        redis::cmd("FLUSHALL").exec(&mut bench.connection).expect("FLUSHALL");
        let objects = OBJECTS.iter().map(|_| Object::default()).collect();
        let random = Random::from(seed);
        let mut case = Self { bench, random, objects, sent: vec![], ids: 0, log: vec![] };
        for _ in 0..STEPS {
            if let Err(what) = case.step() {
                let log = case.log.join("\n");
                return Err(format!("seed {seed}: {what}\n{log}"));
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        let now_ms = self.clear();
        // What the other scripts do to limits and queues is not the subject here.
        for (at, object) in self.objects.iter_mut().enumerate() {
            object.limit = self.bench.limit_and_used(at).0;
            object.waited_for = self.bench.connection.exists(&keys(at).queue[..]).expect("EXISTS");
        }
        match self.random.below(20) {
            0..=7 => self.take_fresh(now_ms)?,
            8..=10 => self.resend(now_ms)?,
            11..=13 => self.end_one(now_ms),
            14 => self.renew_one(now_ms),
            15 => self.take_one(),
            16 => self.put_into_a_queue(),
            17 => self.lose_holds(),
            18 => self.meet_a_foreign_key(now_ms)?,
            _ => self.forward(),
        }
        self.look()
    }

    /// Moves the clock on where a deadline is near.
    fn clear(&mut self) -> u64 {
        loop {
            let now_ms = self.bench.now_us() / 1000;
            let near =
                |hold: &Hold| hold.deadline_ms + 5 > now_ms && hold.deadline_ms < now_ms + CLEAR_MS;
            let gone = self.objects.iter().flat_map(|object| object.gone.values());
            let near_gone =
                gone.clone().any(|until| *until + 5 > now_ms && *until < now_ms + CLEAR_MS);
            let holds = self.objects.iter().flat_map(|object| &object.holds);
            if !near_gone && !holds.into_iter().any(near) {
                return now_ms;
            }
            self.bench.server.clock().forward(Duration::from_millis(CLEAR_MS));
        }
    }

    fn element(&mut self, object: usize) -> Element {
        self.ids += 1;
        let share = match OBJECTS[object].0 {
            "rwlock" => *self.random.one_of(&[Share::Read, Share::Read, Share::Exclusive]),
            "semaphore" => Share::Weight(*self.random.one_of(&[1, 1, 2, 3, 4])),
            _ => Share::Exclusive,
        };
        let owner = *self.random.one_of(&["", "", "one", "two"]);
        let lease_ms = *self.random.one_of(&[2_000, 5_000, 30_000]);
        let mut element = Element::new(object, self.ids, owner, lease_ms, share);
        element.limit = *self.random.one_of(&[3, 3, 3, 4]);
        element.strict = self.random.below(4) == 0;
        element
    }

    /// Some of the objects, in any order.
    fn take_fresh(&mut self, now_ms: u64) -> Result<(), String> {
        let mut left: Vec<_> = (0..OBJECTS.len()).collect();
        let mut elements = Vec::new();
        for _ in 0..=self.random.below(3) {
            let at = usize::try_from(self.random.below(left.len() as u64)).expect("an index");
            let object = left.swap_remove(at);
            elements.push(self.element(object));
        }
        let floor = if self.random.below(6) == 0 { (now_ms + 3_000) * 1000 } else { 0 };
        self.sent.push((elements.clone(), floor));
        self.take(&elements, floor, now_ms)
    }

    fn resend(&mut self, now_ms: u64) -> Result<(), String> {
        if self.sent.is_empty() {
            return Ok(());
        }
        let recent = self.sent.len().saturating_sub(6);
        let (elements, floor) = self.random.one_of(&self.sent[recent..]).clone();
        self.take(&elements, floor, now_ms)
    }

    fn take(&mut self, elements: &[Element], floor: u64, now_ms: u64) -> Result<(), String> {
        let reply = self.bench.take_above(elements, floor);
        self.log.push(format!("at {now_ms} take above {floor} {elements:?} -> {reply:?}"));
        compare(&mut self.objects, elements, floor, now_ms, &reply)
    }

    /// One of the elements that were ever sent, a newer one more often.
    fn earlier(&mut self) -> Option<Element> {
        let recent = self.sent.len().saturating_sub(6);
        let (elements, _) = self
            .sent
            .get(recent..)
            .filter(|sent| !sent.is_empty())
            .map(|sent| self.random.one_of(sent).clone())?;
        Some(self.random.one_of(&elements).clone())
    }

    fn end_one(&mut self, now_ms: u64) {
        let Some(it) = self.earlier() else { return };
        let late = self.random.below(3) == 0;
        let reply = self.bench.send(&release(&it, late, 0)).expect("an answer");
        self.log.push(format!("at {now_ms} end {it:?}, late {late} -> {reply:?}"));
        ReleaseReply::decode(&reply).expect("a reply of this layout");
        let object = &mut self.objects[it.object];
        // What has ended by itself may stay in its key until somebody sweeps it.
        object.holds.retain(|hold| hold.id != it.id || hold.deadline_ms <= now_ms);
        if late {
            object.gone.insert(it.id, now_ms + 60_000);
        }
    }

    fn renew_one(&mut self, now_ms: u64) {
        let Some(it) = self.earlier() else { return };
        let call = verbs(it.object).renew(&keys(it.object), it.id.as_bytes(), it.lease_ms);
        let reply = self.bench.send(&call).expect("an answer");
        self.log.push(format!("at {now_ms} renew {it:?} -> {reply:?}"));
        let (now_us, answers) = RenewReply::decode(&reply).expect("a reply of this layout");
        if let Some(RenewReply::Renewed { left_ms }) = answers.first() {
            let held = self.objects[it.object].holds.iter_mut().find(|hold| hold.id == it.id);
            held.expect("it holds").deadline_ms = now_us / 1000 + left_ms;
        }
    }

    /// By the script of its kind alone.
    fn take_one(&mut self) {
        let object = usize::try_from(self.random.below(OBJECTS.len() as u64)).expect("an index");
        let it = self.element(object);
        let reply = self.bench.send(&try_one(&it)).expect("an answer");
        self.log.push(format!("try {it:?} -> {reply:?}"));
        self.sent.push((vec![it.clone()], 0));
        let reply = AcquireReply::decode(&reply).expect("a reply of this layout");
        if let AcquireReply::Taken { token, left_ms, now_us } = reply {
            let object = &mut self.objects[object];
            if it.share == Share::Exclusive {
                object.token = object.token.max(token);
            }
            let deadline_ms = now_us / 1000 + left_ms;
            let Element { id, owner, share, .. } = it;
            object.holds.push(Hold { id, owner, share, deadline_ms, token });
        }
    }

    /// Somebody who is dead, so that no other script ever grants to it.
    fn put_into_a_queue(&mut self) {
        let object = usize::try_from(self.random.below(OBJECTS.len() as u64)).expect("an index");
        let queue = keys(object).queue;
        let _: u64 = self.bench.connection.zadd(&queue[..], "somebody", 1).expect("ZADD");
        let _: u64 = self.bench.connection.pexpire(&queue[..], 5_000).expect("PEXPIRE");
        self.log.push(format!("somebody waits for {object}"));
    }

    fn lose_holds(&mut self) {
        let object = usize::try_from(self.random.below(OBJECTS.len() as u64)).expect("an index");
        let _: u64 = self.bench.connection.del(&keys(object).holds[..]).expect("DEL");
        self.objects[object].holds.clear();
        self.log.push(format!("the holds of {object} are lost"));
    }

    /// An error takes nothing, wherever the key that is not ours stands.
    fn meet_a_foreign_key(&mut self, now_ms: u64) -> Result<(), String> {
        let (first, last) = (self.random.below(3), self.random.below(3));
        let (first, last) =
            (usize::try_from(first).expect("small"), usize::try_from(last).expect("small"));
        let elements = [self.element(first), self.element(3 + last)];
        let foreign = if last == 0 { keys(3).token } else { keys(3 + last).notes };
        let kept: Option<Vec<u8>> =
            redis::cmd("DUMP").arg(&foreign[..]).query(&mut self.bench.connection).expect("DUMP");
        let _: () = self.bench.connection.set(&foreign[..], "not ours").expect("SET");
        let answer = self.bench.send(&call(&elements, 0));
        let _: u64 = self.bench.connection.del(&foreign[..]).expect("DEL");
        if let Some(kept) = kept {
            let mut restore = redis::cmd("RESTORE");
            restore.arg(&foreign[..]).arg(3_600_000).arg(kept);
            restore.exec(&mut self.bench.connection).expect("RESTORE");
        }
        self.log.push(format!("at {now_ms} {elements:?} with a foreign key -> {answer:?}"));
        // Refused for another reason first, or by the key; never taken.
        match answer.map(|reply| MultiReply::decode(&reply)) {
            Ok(Ok(MultiReply::Taken { .. })) => Err("taken with a foreign key".to_owned()),
            Ok(Ok(_)) | Err(_) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
        }
    }

    fn forward(&mut self) {
        let by = *self.random.one_of(&[1_000, 2_500, 6_000, 31_000, 61_000]);
        self.bench.server.clock().forward(Duration::from_millis(by));
        self.log.push(format!("{by} ms later"));
    }

    /// What the server holds is what the rules hold.
    fn look(&mut self) -> Result<(), String> {
        let now_ms = self.clear();
        for (at, (kind, name)) in OBJECTS.into_iter().enumerate() {
            let there = self.bench.ids(at);
            let mut here: Vec<_> =
                self.objects[at].live(now_ms).map(|hold| hold.id.clone()).collect();
            here.sort();
            let expired = |id: &String| {
                let known = self.objects[at].holds.iter().find(|hold| hold.id == *id);
                known.is_some_and(|hold| hold.deadline_ms <= now_ms)
            };
            let live: Vec<_> = there.iter().filter(|id| !expired(id)).cloned().collect();
            if live != here {
                return Err(format!("{kind} {name}: the server holds {live:?}, not {here:?}"));
            }
            // I14: what is used is what those in the key weigh.
            if kind == "semaphore" {
                let weight = |id: &String| {
                    let known = self.objects[at].holds.iter().find(|hold| hold.id == *id);
                    known.map_or(0, |hold| weight_of(hold.share))
                };
                let (_, used) = self.bench.limit_and_used(at);
                if used != there.iter().map(weight).sum::<u32>() {
                    return Err(format!("{kind} {name}: {used} used by {there:?}"));
                }
            }
        }
        // I17.
        self.bench.endless().map_or(Ok(()), |key| Err(format!("{key} never ends")))
    }
}
