//! A lane: one multiplexed connection that is made when it is needed and made anew when it is spent.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold_lua::{Call, Reply};
use redis::io::tcp::{TcpSettings, socket2};
use redis::{AsyncConnectionConfig, Cmd, ConnectionInfo, ProtocolVersion, Value};

use super::failure::Failure;
use super::reply::from_value;
use super::source::{Connection, Source};
use crate::error::BackendErrorKind;

/// How long a lane waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    pub(crate) connect: Duration,
    pub(crate) response: Duration,
}

/// So many unanswered calls in a row, and the connection is taken for dead: a client library does not reconnect by
/// itself when answers stop coming.
const MOST_TIMEOUTS: u32 = 2;

/// A call that waits for less, and for less than a session's calls wait at the most, says nothing about its connection
/// when it is not answered.
const TELLING: Duration = Duration::from_millis(100);

/// RESP3; no Nagle delay (the client library's default has it); a dead peer is noticed by keepalive.
pub(super) fn tuned(info: ConnectionInfo) -> ConnectionInfo {
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(3))
        .with_retries(3);
    let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    info.set_redis_settings(redis).set_tcp_settings(tcp)
}

/// Calls over one connection, shared by all callers.
///
/// The connection's driver runs on the runtime of the caller that made it. When that runtime has ended the next caller
/// finds the connection dead and makes another in its own context: a session outlives any one runtime.
#[derive(Debug)]
pub(crate) struct Lane {
    source: Source,
    timeouts: Timeouts,
    current: Mutex<Option<Numbered>>,
    connecting: tokio::sync::Mutex<()>,
    silent: AtomicU32,
}

/// A connection and which one it is, so that a late failure of an earlier one does not spend the present one.
#[derive(Debug, Clone)]
struct Numbered {
    number: u64,
    connection: Connection,
}

impl Lane {
    pub(super) fn new(source: Source, timeouts: Timeouts) -> Self {
        Self {
            source,
            timeouts,
            current: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(()),
            silent: AtomicU32::new(0),
        }
    }

    /// Makes the connection if there is none.
    pub(crate) async fn open(&self) -> Result<(), Failure> {
        self.connection().await.map(drop)
    }

    /// Sends a call once. One round trip; two after the server forgot the script.
    pub(crate) async fn call(&self, call: &Call, within: Duration) -> Result<Reply, Failure> {
        let within = within.min(self.timeouts.response);
        let connected = tokio::time::timeout(within, self.connection()).await;
        let used = connected.map_err(|_| Failure::connecting_timed_out())??;
        self.over(used, call, within).await
    }

    /// Sends a call once over the connection that is there, so that it does not overtake what was sent on it before.
    /// `None`: there is none.
    pub(crate) async fn call_behind(
        &self,
        call: &Call,
        within: Duration,
    ) -> Option<Result<Reply, Failure>> {
        let used = self.present()?;
        Some(self.over(used, call, within.min(self.timeouts.response)).await)
    }

    async fn over(&self, used: Numbered, call: &Call, within: Duration) -> Result<Reply, Failure> {
        let (number, heals) = (used.number, used.connection.heals());
        let answer = tokio::time::timeout(within, evaluate(used.connection, call)).await;
        let result = answer.unwrap_or_else(|_| Err(Failure::timed_out()));
        let failure = result.as_ref().err();
        let impatient = within < self.timeouts.response.min(TELLING);
        if !(impatient && failure.is_some_and(|failure| failure.silent)) {
            self.judge(number, heals, failure);
        }
        result.map(from_value)
    }

    /// Sends a command that is no script; one round trip.
    pub(crate) async fn command(&self, words: &[&[u8]]) -> Result<Reply, Failure> {
        let used = self.connection().await?;
        let (number, heals, mut connection) =
            (used.number, used.connection.heals(), used.connection);
        let mut command = Cmd::new();
        for word in words {
            command.arg(*word);
        }
        let asking = command.query_async::<Value>(&mut connection);
        let answer = tokio::time::timeout(self.timeouts.response, asking).await;
        let result = answer
            .map_or_else(|_| Err(Failure::timed_out()), |answer| answer.map_err(Failure::from));
        self.judge(number, heals, result.as_ref().err());
        result.map(from_value)
    }

    /// Publishes a message, and answers how many received it; one round trip.
    pub(crate) async fn publish(&self, channel: &[u8], message: &str) -> Result<i64, Failure> {
        match self.command(&[b"PUBLISH", channel, message.as_bytes()]).await? {
            Reply::Int(receivers) => Ok(receivers),
            Reply::Nil | Reply::Bytes(_) | Reply::List(_) => Ok(0),
        }
    }

    /// Keeps or drops the connection by what a call over it met.
    fn judge(&self, number: u64, heals: bool, failure: Option<&Failure>) {
        match failure {
            None => self.silent.store(0, Ordering::Relaxed),
            Some(failure) if failure.connection_spent => {
                if !(heals && failure.error.kind() == BackendErrorKind::Unreachable) {
                    self.spend(number);
                }
            }
            Some(failure) if failure.silent => {
                if self.silent.fetch_add(1, Ordering::Relaxed) + 1 >= MOST_TIMEOUTS {
                    self.spend(number);
                }
            }
            Some(_) => {}
        }
    }

    /// The next call makes a connection.
    pub(crate) fn reopen(&self) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn spend(&self, number: u64) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|present| present.number == number) {
            *current = None;
        }
        self.silent.store(0, Ordering::Relaxed);
    }

    fn present(&self) -> Option<Numbered> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn connection(&self) -> Result<Numbered, Failure> {
        if let Some(present) = self.present() {
            return Ok(present);
        }
        // Whoever has the turn may be a task of a runtime that stands still: then go on without it.
        let patience = self.timeouts.connect.min(self.timeouts.response / 2);
        let _turn = tokio::time::timeout(patience, self.connecting.lock()).await;
        if let Some(present) = self.present() {
            return Ok(present);
        }
        let connection = self.source.connect(self.timeouts).await?;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let made = Numbered { number: crate::clock::random(), connection };
        *current = Some(made.clone());
        Ok(made)
    }
}

/// The response timeout is ours, call by call; the client library's own is off.
pub(super) fn config(timeouts: Timeouts) -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(timeouts.connect))
        .set_response_timeout(None)
}

async fn evaluate(mut connection: Connection, call: &Call) -> Result<Value, Failure> {
    let hash = call.script.hash(|source| redis::Script::new(source).get_hash().to_owned());
    let first =
        command("EVALSHA", hash.as_bytes(), call).query_async::<Value>(&mut connection).await;
    match first.map_err(Failure::from) {
        // Surely not run, so asking with the whole text is no resend.
        Err(failure) if failure.no_script => {
            let whole = command("EVAL", call.script.source().as_bytes(), call);
            whole.query_async(&mut connection).await.map_err(Failure::from)
        }
        answered => answered,
    }
}

fn command(verb: &str, script: &[u8], call: &Call) -> Cmd {
    let mut command = redis::cmd(verb);
    command.arg(script).arg(call.keys.len());
    for key in &call.keys {
        command.arg(&**key);
    }
    for argument in &call.args {
        command.arg(argument.as_slice());
    }
    command
}
