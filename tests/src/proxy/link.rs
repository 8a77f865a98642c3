//! One connection through the proxy: a client's socket, a server's socket and what lies between.
//!
//! Each direction has a reader, which cuts the stream and decides what happens to each value, and
//! a writer, which sends it when it is due. They are apart so that a delay holds up no reading.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use super::resp::{first_word, value_len, word_count};
use super::{BlackHole, Faults, Shared};

#[derive(Debug)]
pub(super) struct Link {
    client: TcpStream,
    server: TcpStream,
    shared: Arc<Shared>,
    /// Commands that the server has got and not yet answered; it answers in this order.
    awaited: Mutex<VecDeque<Awaited>>,
}

/// A command's reply that is still to come.
#[derive(Debug)]
struct Awaited {
    fate: Fate,
    /// A (un)subscription is answered by pushes, one a channel, unless it fails.
    confirmations: usize,
}

/// What becomes of a value from the server.
#[derive(Clone, Debug)]
enum Fate {
    Arrives,
    /// It is missing, and what follows arrives.
    Skipped,
    /// It is missing with everything behind it: TCP skips no bytes, and a client that got the next
    /// reply in its place would take it for this one.
    Lost,
    ReplacedBy(String),
    /// Half of it arrives, then the link ends.
    Torn,
    /// The link ends before it: not even a quick server's reply slips through.
    Outrun,
}

/// A command on its way to the server.
struct Request {
    due: Instant,
    bytes: Vec<u8>,
    awaited: Awaited,
    then_cut: bool,
}

/// A reply or push on its way to the client.
struct Answer {
    due: Instant,
    bytes: Vec<u8>,
    then_cut: bool,
}

impl Link {
    /// Connects to the server; nothing flows yet.
    pub(super) fn connect(client: TcpStream, shared: &Arc<Shared>) -> io::Result<Arc<Self>> {
        let server = TcpStream::connect(shared.upstream)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (shared, awaited) = (Arc::clone(shared), Mutex::default());
        Ok(Arc::new(Self { client, server, shared, awaited }))
    }

    /// Starts the link's threads; they end with the connection.
    pub(super) fn start(self: &Arc<Self>) {
        let (requests_in, requests_out) = channel();
        let (answers_in, answers_out) = channel();
        self.spawn(move |link| link.read_requests(&requests_in));
        self.spawn(move |link| link.write_requests(requests_out));
        self.spawn(move |link| link.read_answers(&answers_in));
        self.spawn(move |link| link.write_answers(answers_out));
    }

    /// Closes both sides at once; the threads then end. An error means closed already.
    pub(super) fn close(&self) {
        self.client.shutdown(Shutdown::Both).ok();
        self.server.shutdown(Shutdown::Both).ok();
    }

    fn spawn(self: &Arc<Self>, task: impl FnOnce(&Self) + Send + 'static) {
        let link = Arc::clone(self);
        thread::spawn(move || task(&link));
    }

    // ---- client to server ----

    fn read_requests(&self, requests: &Sender<Request>) {
        each_value(&self.client, |command| {
            requests.send(self.request(command)).ok();
        });
    }

    /// Counts a command and decides its fate.
    fn request(&self, command: &[u8]) -> Request {
        let name = first_word(command);
        let confirmations =
            if name.ends_with("subscribe") { (word_count(command) - 1).max(1) } else { 0 };
        let mut state = self.shared.state();
        *state.counts.commands.entry(name).or_default() += 1;
        let fate = state.faults.fate_of_reply(command);
        let then_cut = state.faults.cut_after_request.takes(command);
        let fate = if then_cut { Fate::Outrun } else { fate };
        Request {
            due: Instant::now() + state.faults.delay,
            bytes: command.to_vec(),
            awaited: Awaited { fate, confirmations },
            then_cut,
        }
    }

    fn write_requests(&self, requests: Receiver<Request>) {
        let mut queue = Queue::of(requests);
        let mut lost = false;
        while let Some(batch) = queue.next_due(|request| request.due) {
            lost |= self.in_black_hole(requests_of);
            if !lost && !self.send(batch) {
                break;
            }
        }
        // Only this half: the server still handles what it got, and its replies are read to the
        // end, since unread ones would turn the close into a reset.
        self.shared.wait_for_the_end_of_a_black_hole(requests_of);
        self.server.shutdown(Shutdown::Write).ok();
    }

    /// Sends commands to the server; false when the link has ended, by a fault or by itself.
    fn send(&self, mut batch: Vec<Request>) -> bool {
        let cut = batch.iter().position(|request| request.then_cut);
        batch.truncate(cut.map_or(batch.len(), |at| at + 1));
        let bytes: Vec<_> = batch.iter().flat_map(|request| &request.bytes).copied().collect();
        // Before they are sent: the answer must find its entry.
        let awaited = batch.into_iter().map(|request| request.awaited);
        self.awaited.lock().expect("no panic inside").extend(awaited);
        let sent = (&self.server).write_all(&bytes).is_ok();
        if cut.is_some() {
            self.client.shutdown(Shutdown::Both).ok();
        }
        sent && cut.is_none()
    }

    // ---- server to client ----

    fn read_answers(&self, answers: &Sender<Answer>) {
        let mut silent = false;
        each_value(&self.server, |value| {
            let (bytes, then_cut) = match self.fate(value) {
                Fate::Arrives => (value.to_vec(), false),
                Fate::ReplacedBy(reply) => (reply.into_bytes(), false),
                Fate::Torn => (value[..value.len() / 2].to_vec(), true),
                Fate::Skipped => return,
                Fate::Outrun => {
                    silent = true;
                    return;
                }
                Fate::Lost => {
                    silent = true;
                    self.shared.state().counts.replies_dropped += 1;
                    return;
                }
            };
            if !silent {
                let due = Instant::now() + self.shared.state().faults.delay;
                answers.send(Answer { due, bytes, then_cut }).ok();
            }
        });
    }

    fn fate(&self, value: &[u8]) -> Fate {
        if value.first() != Some(&b'>') {
            return self.fate_of_reply();
        }
        match first_word(value).as_str() {
            "message" | "pmessage" | "smessage" => self.fate_of_message(),
            kind if kind.ends_with("subscribe") => self.fate_of_confirmation(),
            _ => Fate::Arrives,
        }
    }

    fn fate_of_reply(&self) -> Fate {
        let awaited = self.awaited.lock().expect("no panic inside").pop_front();
        awaited.map_or(Fate::Arrives, |awaited| awaited.fate)
    }

    fn fate_of_message(&self) -> Fate {
        let mut state = self.shared.state();
        if state.faults.drop_pushes {
            state.counts.pushes_dropped += 1;
            return Fate::Skipped;
        }
        Fate::Arrives
    }

    /// The server confirms unasked too (it took a slot away): then no subscription is awaited.
    fn fate_of_confirmation(&self) -> Fate {
        let mut awaited = self.awaited.lock().expect("no panic inside");
        let Some(first) = awaited.front_mut().filter(|first| first.confirmations > 0) else {
            return Fate::Arrives;
        };
        let fate = first.fate.clone();
        first.confirmations -= 1;
        if first.confirmations == 0 {
            awaited.pop_front();
        }
        fate
    }

    fn write_answers(&self, answers: Receiver<Answer>) {
        let mut queue = Queue::of(answers);
        let mut lost = false;
        while let Some(batch) = queue.next_due(|answer| answer.due) {
            lost |= self.in_black_hole(answers_of);
            let torn = batch.iter().position(|answer| answer.then_cut);
            let whole = &batch[..torn.map_or(batch.len(), |at| at + 1)];
            let bytes: Vec<_> = whole.iter().flat_map(|answer| &answer.bytes).copied().collect();
            if !lost && ((&self.client).write_all(&bytes).is_err() || torn.is_some()) {
                break;
            }
        }
        self.shared.wait_for_the_end_of_a_black_hole(answers_of);
        self.client.shutdown(Shutdown::Both).ok();
    }

    fn in_black_hole(&self, way: fn(BlackHole) -> bool) -> bool {
        way(self.shared.state().faults.black_hole)
    }
}

fn requests_of(hole: BlackHole) -> bool {
    hole.requests
}

fn answers_of(hole: BlackHole) -> bool {
    hole.answers
}

impl Faults {
    fn fate_of_reply(&mut self, command: &[u8]) -> Fate {
        let (replaced, reply) = &mut self.replace_replies;
        // All look at every command, so that no count depends on another fault.
        let torn = self.cut_mid_reply.takes(command);
        match (self.drop_replies.takes(command), replaced.takes(command)) {
            (true, _) => Fate::Lost,
            (false, true) => Fate::ReplacedBy(format!("{reply}\r\n")),
            (false, false) if torn => Fate::Torn,
            (false, false) => Fate::Arrives,
        }
    }
}

/// Hands over each whole value of a stream, until the stream ends or breaks.
fn each_value(mut stream: &TcpStream, mut task: impl FnMut(&[u8])) {
    let mut chunk = vec![0; 64 * 1024];
    let mut bytes = Vec::new();
    while let Ok(read @ 1..) = stream.read(&mut chunk) {
        bytes.extend_from_slice(&chunk[..read]);
        let mut begin = 0;
        while let Some(length) = value_len(&bytes[begin..]) {
            task(&bytes[begin..begin + length]);
            begin += length;
        }
        bytes.drain(..begin);
    }
}

/// Values in their order, each held until it is due.
struct Queue<T> {
    values: Receiver<T>,
    ahead: Option<T>,
}

impl<T> Queue<T> {
    fn of(values: Receiver<T>) -> Self {
        Self { values, ahead: None }
    }

    /// Waits until the first value is due and returns it with all behind it that are due as well
    /// (what came in one packet leaves in one); `None` when the stream has ended.
    fn next_due(&mut self, due: impl Fn(&T) -> Instant) -> Option<Vec<T>> {
        let first = self.ahead.take().or_else(|| self.values.recv().ok())?;
        thread::sleep(due(&first).saturating_duration_since(Instant::now()));
        let mut batch = vec![first];
        let now = Instant::now();
        while let Ok(value) = self.values.try_recv() {
            if due(&value) > now {
                self.ahead = Some(value);
                break;
            }
            batch.push(value);
        }
        Some(batch)
    }
}
