//! The host: it takes each object, lets the visitor wait, hands over, and looks where everything is.

use std::fmt;
use std::time::{Duration, Instant};

use leasehold::Session;
use leasehold_examples::Failure;
use leasehold_examples::board::Board;
use leasehold_examples::crew::Crew;

use crate::VISITOR;
use crate::cluster::{Cluster, Key};
use crate::objects::{self, Object, Who};

/// Between two looks at the keys.
const LOOK: Duration = Duration::from_millis(5);
/// A stop at which nothing happens for longer has failed.
const LIMIT_OF_A_STEP: Duration = Duration::from_secs(30);

pub(crate) struct Tour<'a> {
    crew: &'a mut Crew,
    cluster: &'a Cluster,
    session: &'a Session,
    board: Board,
    visitor: usize,
    /// How many holds the visitor got by a push so far.
    pushed: u64,
    /// Of the stops before.
    known: Vec<Key>,
}

/// What one stop showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    pub(crate) object: Object,
    /// All keys of it, while one holds and one waits.
    pub(crate) keys: Vec<Key>,
    /// How many scripts it took to hold it, with nobody else there; to arm it, if it is a latch.
    pub(crate) scripts: u64,
    /// The tokens of the host, and of the visitor.
    pub(crate) tokens: [Vec<u64>; 2],
    /// How many holds the visitor got by a push.
    pub(crate) pushed: u64,
    /// From the release to the line of the visitor that it holds, or that the latch is open.
    pub(crate) handed_over: Duration,
}

impl<'a> Tour<'a> {
    pub(crate) fn start(
        crew: &'a mut Crew,
        cluster: &'a Cluster,
        session: &'a Session,
    ) -> Result<Self, Failure> {
        // One address is enough: the others are found.
        let visitor = crew.start([VISITOR, &cluster.urls()[0]])?;
        let board = Board::new([("tour", Object::ALL.len())]);
        Ok(Self { crew, cluster, session, board, visitor, pushed: 0, known: Vec::new() })
    }

    pub(crate) async fn run(mut self) -> Result<Vec<Stop>, Failure> {
        let mut stops = Vec::new();
        for object in Object::ALL {
            self.board.show(0, object.name());
            let at_stop = async {
                if object == Object::Latch {
                    self.open_latch().await
                } else {
                    self.hand_over(object).await
                }
            };
            let stop = tokio::time::timeout(LIMIT_OF_A_STEP, Box::pin(at_stop)).await;
            let stop = stop.map_err(|_| format!("{}: no end in sight", object.name()))??;
            self.board.say(stop.to_string())?;
            stops.push(stop);
            self.board.reach(0, stops.len());
        }
        Ok(stops)
    }

    async fn hand_over(&mut self, object: Object) -> Result<Stop, Failure> {
        let before = self.cluster.scripts().await?;
        let held = object.take(self.session, Who::Host).await?;
        let scripts = self.cluster.scripts().await? - before;
        self.crew.tell(self.visitor, object.name()).await?;
        let keys = self.keys_with(":queue").await?;

        let (tokens, released) = (held.tokens(), Instant::now());
        held.release().await?;
        let line = self.visitor_says("held").await?;
        let handed_over = released.elapsed();
        let [pushed, theirs @ ..] = line.as_slice() else { return Err("no number".into()) };
        let before = std::mem::replace(&mut self.pushed, *pushed);
        self.crew.tell(self.visitor, "release").await?;
        self.visitor_says("released").await?;
        let tokens = [tokens, theirs.to_vec()];
        Ok(Stop { object, keys, scripts, tokens, pushed: pushed - before, handed_over })
    }

    async fn open_latch(&mut self) -> Result<Stop, Failure> {
        let latch = objects::latch(self.session)?;
        let before = self.cluster.scripts().await?;
        latch.arm(1).await?;
        let scripts = self.cluster.scripts().await? - before;
        self.crew.tell(self.visitor, Object::Latch.name()).await?;
        let keys = self.keys_with(":waiters").await?;
        let counted = Instant::now();
        latch.count_down().await?;
        self.visitor_says("opened").await?;
        let (handed_over, tokens) = (counted.elapsed(), [Vec::new(), Vec::new()]);
        Ok(Stop { object: Object::Latch, keys, scripts, tokens, pushed: 0, handed_over })
    }

    /// The keys of this stop, as soon as somebody waits: then one of them ends so.
    async fn keys_with(&mut self, ending: &str) -> Result<Vec<Key>, Failure> {
        loop {
            let keys = self.cluster.keys().await?.into_iter().map(|(key, _)| key);
            let keys: Vec<_> = keys.filter(|key| !self.known.contains(key)).collect();
            if keys.iter().any(|key| key.name.ends_with(ending)) {
                self.known.extend(keys.clone());
                return Ok(keys);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The numbers behind this word, which is what the visitor says next.
    async fn visitor_says(&mut self, word: &str) -> Result<Vec<u64>, Failure> {
        let (_, line) = self.crew.next_line().await?;
        let mut words = line.split(' ').filter(|word| !word.is_empty());
        if words.next() != Some(word) {
            return Err(format!("the visitor said: {line}").into());
        }
        Ok(words.map(str::parse).collect::<Result<_, _>>()?)
    }
}

impl Stop {
    /// The keys that stand for the object: the shortest of each slot.
    pub(crate) fn places(&self) -> Vec<&Key> {
        let mut shortest: Vec<&Key> = Vec::new();
        for key in &self.keys {
            let is_beside = shortest.iter().any(|other| key.name.starts_with(&other.name));
            if !is_beside {
                shortest.push(key);
            }
        }
        shortest
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, scripts, tokens: [ours, theirs], pushed, handed_over, .. } = self;
        let ms = handed_over.as_secs_f64() * 1e3;
        writeln!(f, "{}", object.name())?;
        for place in self.places() {
            writeln!(f, "  {place}")?;
        }
        let scripts =
            if *scripts == 1 { "1 script".to_owned() } else { format!("{scripts} scripts") };
        if *object == Object::Latch {
            return writeln!(
                f,
                "  armed by {scripts}; the other process goes on {ms:.1} ms after the count"
            );
        }
        writeln!(f, "  held by {scripts}{}", under(ours))?;
        writeln!(
            f,
            "  released: {ms:.1} ms later the other process holds, by {pushed} push{}{}",
            if *pushed == 1 { "" } else { "es" },
            under(theirs)
        )
    }
}

/// The tokens, if there are any.
fn under(tokens: &[u64]) -> String {
    let tokens: Vec<_> = tokens.iter().map(u64::to_string).collect();
    match tokens.as_slice() {
        [] => String::new(),
        tokens => format!(", under {}", tokens.join(" and ")),
    }
}
