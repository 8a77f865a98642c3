//! The latch as the engine sees it: a topic whose rounds are its generations.

use std::sync::Arc;

use leasehold_lua::latch::{self as scripts, State, WaitReply};
use leasehold_lua::{Call, DecodeError, LatchKeys, ObjectName, Reply, Terms};
use leasehold_runtime::engine::{Listener, Look, News, Over, Topic};
use leasehold_runtime::{ConfigError, Name, engine};

/// Part of the keys: a latch and another primitive of the same name do not meet.
const KIND: &str = "latch";

#[derive(Debug)]
pub(crate) struct LatchTopic {
    pub(crate) name: Name,
    pub(crate) keys: LatchKeys,
}

impl LatchTopic {
    pub(crate) fn new(prefix: &[u8], name: Name) -> Result<Self, ConfigError> {
        engine::check_name(&name)?;
        let keys = LatchKeys::new(ObjectName {
            prefix,
            kind: KIND,
            group: name.group(),
            name: name.as_bytes(),
        });
        Ok(Self { name, keys })
    }
}

impl Topic for LatchTopic {
    fn key(&self) -> &Arc<[u8]> {
        &self.keys.latch
    }

    fn look(&self, listener: Listener<'_>, terms: Terms) -> Call {
        scripts::wait(&self.keys, listener.uuid, listener.inbox, terms.wait_ms, terms.check_ms)
    }

    fn leave(&self, listener: Listener<'_>) -> Call {
        scripts::leave(&self.keys, listener.uuid, listener.inbox)
    }

    fn read(&self, reply: &Reply) -> Result<Look, DecodeError> {
        let WaitReply { state, generation, check_ms } = WaitReply::decode(reply)?;
        Ok(Look { news: News { round: generation, state: state.code() }, check_ms })
    }
}

/// How waiting at a latch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Open,
    NotArmed,
    Expired,
    Reset,
}

/// I15: open is only what the generation says that was waited for, or, at the first look, the present one.
pub(crate) fn end_of(over: Over) -> End {
    let Over { waited_for, news } = over;
    let same = waited_for.is_none_or(|generation| generation == news.round);
    match (State::of(news.state), waited_for) {
        (Some(State::Open), _) if same => End::Open,
        (Some(State::NotArmed | State::Reset) | None, None) => End::NotArmed,
        (Some(State::NotArmed), Some(_)) => End::Expired,
        (Some(State::Waits | State::Open | State::Reset) | None, _) => End::Reset,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(waited_for: Option<u64>, round: u64, state: State) -> End {
        end_of(Over { waited_for, news: News { round, state: state.code() } })
    }

    #[test]
    fn only_the_generation_that_was_waited_for_opens() {
        assert_eq!(end(None, 7, State::Open), End::Open);
        assert_eq!(end(Some(7), 7, State::Open), End::Open);
        assert_eq!(end(Some(6), 7, State::Open), End::Reset);
        assert_eq!(end(Some(6), 7, State::Waits), End::Reset);
        assert_eq!(end(Some(7), 7, State::Reset), End::Reset);
        assert_eq!(end(None, 7, State::Reset), End::NotArmed);
        assert_eq!(end(None, 0, State::NotArmed), End::NotArmed);
        assert_eq!(end(Some(7), 0, State::NotArmed), End::Expired);
    }

    #[test]
    fn a_bad_name_is_refused() {
        assert!(matches!(LatchTopic::new(b"", Name::new("")), Err(ConfigError::Name { .. })));
    }
}
