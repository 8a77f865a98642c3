use leasehold_lua::{Call, DecodeError, Reply, Terms};

use super::*;
use crate::engine::Listener;

/// A topic that is only asked who it is.
#[derive(Debug)]
struct Named(Arc<[u8]>);

impl Topic for Named {
    fn key(&self) -> &Arc<[u8]> {
        &self.0
    }
    fn look(&self, _: Listener<'_>, _: Terms) -> Call {
        unreachable!("nothing is sent")
    }
    fn leave(&self, _: Listener<'_>) -> Call {
        unreachable!("nothing is sent")
    }
    fn read(&self, _: &Reply) -> Result<Look, DecodeError> {
        unreachable!("nothing is read")
    }
}

type Heard = oneshot::Receiver<Result<Over, WaitError>>;

fn topic() -> Arc<dyn Topic> {
    Arc::new(Named(b"key".as_slice().into()))
}

fn enter(topics: &Topics) -> (Entered, Heard) {
    let (tell, heard) = oneshot::channel();
    (topics.enter(&topic(), tell).expect("it is open"), heard)
}

fn due(topics: &Topics) -> DueLook {
    topics.due_looks().pop().expect("a look is due")
}

fn goes_on(round: u64) -> Look {
    Look { news: News { round, state: GOES_ON }, check_ms: 1000 }
}

fn heard(heard: &mut Heard) -> Option<Over> {
    heard.try_recv().ok().map(|told| told.expect("news"))
}

#[test]
fn a_push_ends_the_waiting_for_its_round_only() {
    let topics = Topics::default();
    let (entered, mut one) = enter(&topics);
    let look = due(&topics);
    assert!(topics.looked(&look, goes_on(7), Some(Moment::NEVER)).is_none());
    topics.pushed(entered.entry, News { round: 6, state: 1 });
    assert_eq!(heard(&mut one), None);
    let news = News { round: 7, state: 1 };
    topics.pushed(entered.entry, news);
    assert_eq!(heard(&mut one), Some(Over { waited_for: Some(7), news }));
    assert_eq!(topics.len(), 0);
}

#[test]
fn a_push_that_overtakes_the_answer_to_the_look_is_not_lost() {
    let topics = Topics::default();
    let (entered, mut one) = enter(&topics);
    let look = due(&topics);
    let news = News { round: 7, state: 1 };
    topics.pushed(entered.entry, news);
    assert_eq!(heard(&mut one), None, "nobody knows yet what it waits for");
    assert!(topics.looked(&look, goes_on(7), Some(Moment::NEVER)).is_some());
    assert_eq!(heard(&mut one), Some(Over { waited_for: Some(7), news }));
}

#[test]
fn a_look_says_nothing_to_who_came_after_it_was_sent() {
    let topics = Topics::default();
    let (_, mut one) = enter(&topics);
    let look = due(&topics);
    let (_, mut two) = enter(&topics);
    let over = Look { news: News { round: 7, state: 2 }, check_ms: 0 };
    assert!(topics.looked(&look, over, Some(Moment::NEVER)).is_none());
    assert_eq!(heard(&mut one), Some(Over { waited_for: None, news: over.news }));
    assert_eq!(heard(&mut two), None);
    let own = due(&topics);
    drop(topics.looked(&own, goes_on(8), Some(Moment::NEVER)));
    assert_eq!((heard(&mut two), topics.len()), (None, 1));
}

#[test]
fn another_round_ends_the_waiting_for_the_one_before() {
    let topics = Topics::default();
    let (_, mut one) = enter(&topics);
    let look = due(&topics);
    drop(topics.looked(&look, goes_on(7), Some(now())));
    let look = due(&topics);
    let left = topics.looked(&look, goes_on(8), Some(Moment::NEVER));
    assert!(left.is_some(), "the look entered us again, and nobody waits any more");
    let news = News { round: 8, state: GOES_ON };
    assert_eq!(heard(&mut one), Some(Over { waited_for: Some(7), news }));
}

#[test]
fn the_last_one_to_leave_has_the_entry_taken_away() {
    let topics = Topics::default();
    let (first, _one) = enter(&topics);
    let (second, _two) = enter(&topics);
    let key = topic().key().clone();
    let look = due(&topics);
    assert!(topics.leave(&key, first.entry, first.number).is_none());
    assert!(topics.leave(&key, first.entry, first.number).is_none(), "it has left");
    assert!(topics.leave(&key, second.entry, second.number).is_some());
    assert!(topics.looked(&look, goes_on(7), None).is_some(), "entered behind their backs");
    assert_eq!(topics.next_look(), Moment::NEVER);
}

#[test]
fn who_leaves_before_any_look_left_nothing() {
    let topics = Topics::default();
    let (entered, _heard) = enter(&topics);
    assert!(topics.leave(topic().key(), entered.entry, entered.number).is_none());
    assert!(topics.due_looks().is_empty());
}

#[test]
fn a_refusal_ends_the_waiting_and_a_failure_does_not() {
    let topics = Topics::default();
    let (entered, mut one) = enter(&topics);
    let look = due(&topics);
    let failure = BackendError::new(BackendErrorKind::Unreachable, "no answer in time");
    assert!(topics.failed(&look, &failure, false).is_none());
    let known = topics.knows(topic().key(), entered.entry, entered.number);
    let Some(Knows::Nothing(Some(error))) = known else { panic!("{known:?}") };
    assert_eq!(error.to_string(), failure.to_string());
    topics.look_at_all_now();
    let look = due(&topics);
    drop(topics.failed(&look, &failure, true));
    assert!(matches!(one.try_recv(), Ok(Err(WaitError::Backend(_)))));
}

#[test]
fn closing_tells_everybody_and_lets_nobody_in() {
    let topics = Topics::default();
    let (_, mut one) = enter(&topics);
    let look = due(&topics);
    assert_eq!(topics.close().len(), 1);
    assert!(matches!(one.try_recv(), Ok(Err(WaitError::Closed))));
    let (tell, _heard) = oneshot::channel();
    assert!(topics.enter(&topic(), tell).is_none());
    assert!(topics.looked(&look, goes_on(7), None).is_some(), "I20: it entered us after all");
}
