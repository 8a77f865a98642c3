//! The model beside the server: what a step is, what it must do, and what clients were told.

use leasehold_lua::latch::{
    self, ArmReply, CountReply, Counter, LookReply, ResetReply, State, WaitReply,
};
use leasehold_lua::wire::Push;
use leasehold_lua::{Call, Keys, LatchKeys, Reply};

use super::bench::{INBOXES, Seen, channel};
use super::claims::Claims;
use super::events::Event;
use super::keys::Key;
use super::reference::{Answer, CHECK_MS, Id, Listener, Reference, Told, World};
use super::runner::{Action, Model};

/// Which generation a call names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Meant {
    /// The present one, or the last.
    Present,
    /// One before it: a late copy.
    Earlier,
    /// One that never was.
    Unknown,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Arm {
        arm: usize,
    },
    CountDown {
        meant: Meant,
        id: Id,
    },
    Look,
    Wait {
        listener: Listener,
    },
    Leave {
        listener: Listener,
    },
    Reset {
        meant: Meant,
    },
    /// Just beyond the end of a key.
    PastLatch,
    Event(Event),
}

#[derive(Clone, Debug)]
pub(crate) enum Request {
    Arm { arm: usize },
    CountDown { meant: u64, id: Id },
    Look,
    Wait { listener: Listener },
    Leave { listener: Listener },
    Reset { meant: u64 },
}

#[derive(Clone, Debug)]
pub(crate) struct LatchModel {
    pub(crate) reference: Reference,
    claims: Claims,
    /// All that there were.
    pub(crate) generations: Vec<u64>,
    alive: [bool; INBOXES],
}

impl LatchModel {
    pub(crate) fn new(world: World, now_us: u64) -> Self {
        Self {
            reference: Reference::new(world, now_us),
            claims: Claims::default(),
            generations: Vec::new(),
            alive: [true; INBOXES],
        }
    }

    fn generation(&self, meant: Meant) -> u64 {
        let last = self.generations.len();
        let at = match meant {
            Meant::Present => last.checked_sub(1),
            Meant::Earlier => last.checked_sub(2),
            Meant::Unknown => None,
        };
        at.map_or(7, |at| self.generations[at])
    }

    /// Does what the server does. `fresh`: the number of the generation, should one begin.
    pub(crate) fn answer(&mut self, request: &Request, fresh: u64) -> Answer {
        let reference = &mut self.reference;
        let answer = match *request {
            Request::Arm { arm } => reference.arm(arm, fresh),
            Request::CountDown { meant, id } => reference.count_down(meant, id),
            Request::Look => reference.look(),
            Request::Wait { listener } => reference.wait(listener),
            Request::Leave { listener } => reference.leave(listener),
            Request::Reset { meant } => reference.reset(meant),
        };
        if let Answer::Armed { generation, .. } = answer
            && !self.generations.contains(&generation)
        {
            self.generations.push(generation);
        }
        answer
    }

    fn claim(&mut self, request: &Request, answer: Answer, told: &[Told]) -> Result<(), String> {
        match *request {
            Request::Arm { arm } => {
                self.claims.armed(arm, self.reference.world.arms[arm].0, answer)?;
            }
            Request::CountDown { meant, id } => self.claims.counted(meant, id, answer)?,
            Request::Reset { meant } => self.claims.reset(meant, answer)?,
            Request::Look | Request::Wait { .. } | Request::Leave { .. } => {}
        }
        if let Answer::Looked { state, generation, .. } | Answer::Waits { state, generation } =
            answer
        {
            self.claims.is(state, generation)?;
        }
        self.claims.told(told)
    }

    /// The number that an arm's generation must have, given the one that it has.
    fn fresh(&self, answer: Answer, seen: &Seen) -> Result<u64, String> {
        let least = self.reference.next_generation();
        let Answer::Armed { armed: true, generation } = answer else { return Ok(least) };
        let known = self.generations.contains(&generation);
        let by_the_clock = (seen.before_us..=seen.called_us).contains(&generation);
        if known || generation == least || (by_the_clock && generation > least) {
            return Ok(if known { least } else { generation });
        }
        Err(format!("generation {generation}, at least {least} and of the clock"))
    }
}

impl Model for LatchModel {
    type Request = Request;

    fn begin(&self, now_us: u64) -> Self {
        Self::new(self.reference.world.clone(), now_us)
    }

    fn world(&self) -> String {
        format!("{:?}", self.reference.world)
    }

    fn small_bounds(&self) -> bool {
        self.reference.world.small_bounds
    }

    fn now_us(&self) -> u64 {
        self.reference.now_us
    }

    fn deadlines_ms(&self) -> Vec<u64> {
        self.reference.deadlines_ms()
    }

    fn at(&mut self, now_us: u64) {
        self.reference.at(now_us);
        self.claims.time_passed(now_us);
    }

    fn action(&self, step: &Step, now_us: u64) -> Action<Request> {
        match *step {
            Step::Arm { arm } => Action::Send(Request::Arm { arm }),
            Step::CountDown { meant, id } => {
                Action::Send(Request::CountDown { meant: self.generation(meant), id })
            }
            Step::Look => Action::Send(Request::Look),
            Step::Wait { listener } => Action::Send(Request::Wait { listener }),
            Step::Leave { listener } => Action::Send(Request::Leave { listener }),
            Step::Reset { meant } => Action::Send(Request::Reset { meant: self.generation(meant) }),
            Step::PastLatch => {
                let next =
                    self.deadlines_ms().into_iter().filter(|end| *end > now_us / 1_000).min();
                let ms = next.map_or(1, |end| end - now_us / 1_000 + 11);
                Action::Clock(ms.cast_signed())
            }
            Step::Event(event) => event.action(),
        }
    }

    fn suffer(&mut self, action: &Action<Request>) {
        match action {
            Action::Inbox { inbox, alive } => self.alive[*inbox] = *alive,
            Action::Lose(key) => {
                self.reference.lose(*key);
                if *key == Key::Ids {
                    self.claims.ids_lost();
                }
            }
            Action::Clock(ms) if *ms < 0 => self.claims.clock_went_back(ms.unsigned_abs()),
            Action::Send(_) | Action::Clock(_) | Action::FlushScripts => {}
        }
    }

    fn call(&self, keys: &Keys, request: &Request) -> Call {
        let with = |suffix: &[u8]| [&*keys.holds, suffix].concat().into();
        let keys =
            LatchKeys { latch: keys.holds.clone(), ids: with(b":ids"), waiters: with(b":waiters") };
        let world = &self.reference.world;
        match *request {
            Request::Arm { arm } => {
                let (count, lasts_ms) = world.arms[arm];
                latch::arm(&keys, &arm.to_string(), count, lasts_ms)
            }
            Request::CountDown { meant, id } => match id {
                Id::Arm(number) | Id::Call(number) => {
                    latch::count_down(&keys, meant, Counter::Call(&number.to_string()))
                }
                Id::Named(number) => {
                    latch::count_down(&keys, meant, Counter::Named(number.to_string().as_bytes()))
                }
            },
            Request::Look => latch::look(&keys),
            Request::Wait { listener: Listener { uuid, inbox } } => {
                let (uuid, inbox) = (uuid.to_string(), channel(inbox));
                latch::wait(&keys, &uuid, inbox.as_bytes(), world.wait_ms, CHECK_MS)
            }
            Request::Leave { listener: Listener { uuid, inbox } } => {
                latch::leave(&keys, &uuid.to_string(), channel(inbox).as_bytes())
            }
            Request::Reset { meant } => latch::reset(&keys, meant),
        }
    }

    fn assume(&mut self, request: &Request, _: u64) {
        let fresh = self.reference.next_generation();
        self.answer(request, fresh);
    }

    fn see(&mut self, request: Option<&Request>, seen: &Seen, slack_ms: u64) -> Result<(), String> {
        self.reference.at(seen.before_us);
        let pushes = pushes(&seen.pushes)?;
        if let (Some(request), Some(reply)) = (request, &seen.reply) {
            let (answer, check_ms) = answer(request, reply)?;
            let fresh = self.fresh(answer, seen)?;
            self.claim(request, answer, &pushes)?;
            let expected = self.answer(request, fresh);
            if expected != answer {
                return Err(format!("reply: model {expected:?}, server {answer:?}"));
            }
            let far = self.reference.check_ms.unwrap_or(0).abs_diff(check_ms) > slack_ms;
            if far || (self.reference.check_ms.is_some() && check_ms == 0) {
                let ours = self.reference.check_ms;
                return Err(format!("I11: next look in {check_ms} ms, model {ours:?}"));
            }
        }
        let heard = |(inbox, ..): &&Told| self.alive[*inbox];
        let mut told: Vec<_> = self.reference.told.iter().filter(heard).copied().collect();
        told.sort_by_key(order);
        if told != pushes {
            return Err(format!("pushes: model {told:?}, server {pushes:?}"));
        }
        if let Some(why) = self.reference.difference(&seen.found, slack_ms) {
            return Err(format!("keys: {why}"));
        }
        self.reference.align(&seen.found);
        Ok(())
    }
}

fn order((inbox, uuid, generation, state): &Told) -> (usize, usize, u64, u64) {
    (*inbox, *uuid, *generation, state.code())
}

fn pushes(arrived: &[(usize, Push)]) -> Result<Vec<Told>, String> {
    let read = |(inbox, push): &(usize, Push)| {
        let Push::Over { uuid, round, state } = push else { return Err(format!("{push:?}")) };
        let uuid = uuid.parse().map_err(|_| format!("push for {uuid}"))?;
        let state = State::of(*state).ok_or(format!("push of {state}"))?;
        Ok((*inbox, uuid, *round, state))
    };
    let mut all: Vec<_> = arrived.iter().map(read).collect::<Result<_, _>>()?;
    all.sort_by_key(order);
    Ok(all)
}

/// The answer, and when to look again.
fn answer(request: &Request, reply: &Reply) -> Result<(Answer, u64), String> {
    let read = match request {
        Request::Arm { .. } => ArmReply::decode(reply)
            .map(|ArmReply { armed, generation }| (Answer::Armed { armed, generation }, 0)),
        Request::CountDown { .. } => CountReply::decode(reply).map(|reply| match reply {
            CountReply::Counted { left, again } => (Answer::Counted { left, again }, 0),
            CountReply::Other { generation } => (Answer::Other { generation }, 0),
            CountReply::Reset => (Answer::Gone(State::Reset), 0),
            CountReply::NotArmed => (Answer::Gone(State::NotArmed), 0),
        }),
        Request::Look => LookReply::decode(reply).map(|LookReply { state, generation, left }| {
            (Answer::Looked { state, generation, left }, 0)
        }),
        Request::Wait { .. } => {
            WaitReply::decode(reply).map(|WaitReply { state, generation, check_ms }| {
                (Answer::Waits { state, generation }, check_ms)
            })
        }
        Request::Leave { .. } => {
            let there = *reply == Reply::List(vec![Reply::Int(1)]);
            let not_there = *reply == Reply::List(vec![Reply::Int(0)]);
            if !there && !not_there {
                return Err(format!("left {reply:?}"));
            }
            Ok((Answer::Left(there), 0))
        }
        Request::Reset { .. } => ResetReply::decode(reply).map(|reply| match reply {
            ResetReply::Reset { again } => (Answer::Reset { done: true, again }, 0),
            ResetReply::Before { again } => (Answer::Reset { done: false, again }, 0),
            ResetReply::Other => (Answer::NotThat, 0),
        }),
    };
    read.map_err(|error| format!("{error}: {reply:?}"))
}
