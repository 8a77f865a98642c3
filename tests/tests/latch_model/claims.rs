//! What clients were told, and what must hold of it whatever the model says.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_lua::latch::State;

use super::reference::{Answer, Id, Told};

/// What was answered about one generation.
#[derive(Clone, Debug, Default)]
struct Heard {
    arm: usize,
    count: u64,
    /// What each id was answered first.
    answers: BTreeMap<Id, u64>,
    reset: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Claims {
    generations: BTreeMap<u64, Heard>,
    arms: BTreeMap<usize, u64>,
    /// Generations whose ids were lost: their resends are not known any more.
    lost: BTreeSet<u64>,
    /// By how much the clock went back. After that, and the loss of all keys, nobody knows the last generation.
    back_us: u64,
}

impl Claims {
    /// The ids were lost behind the scripts' back, or ended by themselves.
    pub(crate) fn ids_lost(&mut self) {
        self.lost.extend(self.generations.keys());
        self.arms.clear();
    }

    pub(crate) fn clock_went_back(&mut self, ms: u64) {
        self.back_us += ms * 1_000;
    }

    /// Copies of calls are kept in mind for a minute.
    pub(crate) fn time_passed(&mut self, now_us: u64) {
        self.arms.retain(|_, generation| *generation + 60_000_000 > now_us + self.back_us);
    }

    /// I6: the copies of an arm begin one generation.
    pub(crate) fn armed(&mut self, arm: usize, count: u32, answer: Answer) -> Result<(), String> {
        let Answer::Armed { armed: true, generation } = answer else { return Ok(()) };
        if let Some(heard) = self.generations.get(&generation) {
            let same = heard.arm == arm;
            return if same { Ok(()) } else { Err(format!("{generation} was armed by others")) };
        }
        if let Some(before) = self.arms.insert(arm, generation) {
            return Err(format!("I6: arm {arm} armed {before} and {generation}"));
        }
        let last = self.generations.last_key_value().map_or(0, |(last, _)| *last);
        if last >= generation && self.back_us == 0 {
            return Err(format!("generation {generation} is not after the last"));
        }
        let heard = Heard { arm, count: count.into(), ..Heard::default() };
        self.generations.insert(generation, heard);
        Ok(())
    }

    /// I6: an id counts once in a generation, and each of its copies is answered alike.
    pub(crate) fn counted(&mut self, meant: u64, id: Id, answer: Answer) -> Result<(), String> {
        let Answer::Counted { left, .. } = answer else { return Ok(()) };
        let Some(heard) = self.generations.get_mut(&meant) else {
            return Err(format!("I15: counted in {meant}, which nobody armed"));
        };
        if heard.reset {
            return Err(format!("I15: counted in {meant}, which was reset"));
        }
        let before = heard.answers.len() as u64;
        match heard.answers.get(&id) {
            Some(first) if *first != left && !self.lost.contains(&meant) => {
                Err(format!("I6: {id:?} was answered {first}, and now {left}"))
            }
            Some(_) => Ok(()),
            None if before == heard.count => {
                if left == 0 {
                    Ok(())
                } else {
                    Err(format!("{left} left of an open latch"))
                }
            }
            None => {
                heard.answers.insert(id, left);
                let rest = heard.count - before - 1;
                if left == rest { Ok(()) } else { Err(format!("{left} left instead of {rest}")) }
            }
        }
    }

    pub(crate) fn reset(&mut self, meant: u64, answer: Answer) -> Result<(), String> {
        let Answer::Reset { done, .. } = answer else { return Ok(()) };
        let Some(heard) = self.generations.get_mut(&meant) else {
            return Err(format!("reset {meant}, which nobody armed"));
        };
        if done && std::mem::replace(&mut heard.reset, true) {
            return Err(format!("I6: {meant} was reset twice"));
        }
        Ok(())
    }

    /// I15: open only at zero of its generation.
    pub(crate) fn is(&self, state: State, generation: u64) -> Result<(), String> {
        let heard = self.generations.get(&generation);
        let right = match (state, heard) {
            (State::NotArmed, _) => true,
            (_, None) => false,
            (State::Open, Some(heard)) => heard.answers.len() as u64 == heard.count && !heard.reset,
            (State::Waits, Some(heard)) => !heard.reset,
            (State::Reset, Some(heard)) => heard.reset,
        };
        if right { Ok(()) } else { Err(format!("I15: {state:?} of {generation}: {heard:?}")) }
    }

    /// One push a process and call, and only the truth.
    pub(crate) fn told(&self, told: &[Told]) -> Result<(), String> {
        for (_, _, generation, state) in told {
            self.is(*state, *generation)?;
        }
        let entries: BTreeSet<_> = told.iter().map(|(inbox, uuid, ..)| (inbox, uuid)).collect();
        let twice = entries.len() < told.len();
        if twice { Err(format!("told twice: {told:?}")) } else { Ok(()) }
    }
}
