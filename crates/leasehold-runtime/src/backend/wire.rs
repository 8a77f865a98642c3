//! A wire: multiplexed connections to one place, made when they are needed and made anew when they are spent.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_lua::{Call, Reply};
use redis::aio::ConnectionLike;
use redis::io::tcp::{TcpSettings, socket2};
use redis::{AsyncConnectionConfig, Cmd, ConnectionInfo, ProtocolVersion, Value};

use tokio::runtime;

use super::address::Node;
use super::failure::Failure;
use super::here;
use super::reply::from_value;
use super::source::{Connection, Made, Source};
use crate::error::BackendErrorKind;

/// How long a wire waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    pub(crate) connect: Duration,
    pub(crate) response: Duration,
}

/// How a call is put to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Straight,
    /// Of a slot that is on its way to this node: only who asks is answered.
    Asking,
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

/// Calls over multiplexed connections: one for each runtime that calls, shared by all of its tasks.
///
/// A connection's driver runs on the runtime that made it, and stands still or ends with it. So each runtime has its own:
/// the end of one costs the callers of another nothing, and a session outlives any of them.
#[derive(Debug)]
pub(super) struct Wire {
    source: Source,
    timeouts: Timeouts,
    open: Mutex<Vec<Numbered>>,
    connecting: tokio::sync::Mutex<()>,
    silent: AtomicU32,
}

/// The oldest connections beyond this number are forgotten: those of runtimes that have ended stay until then.
const MOST_CONNECTIONS: usize = 64;

/// A connection and which one it is, so that a late failure of an earlier one does not spend the present one.
#[derive(Debug, Clone)]
struct Numbered {
    number: u64,
    /// The runtime that drives it; none for one that was given, which serves all.
    home: Option<runtime::Id>,
    connection: Connection,
    /// The server that it leads to, where that may change.
    node: Option<Node>,
}

impl Wire {
    pub(super) fn new(source: Source, timeouts: Timeouts) -> Self {
        Self {
            source,
            timeouts,
            open: Mutex::new(Vec::new()),
            connecting: tokio::sync::Mutex::new(()),
            silent: AtomicU32::new(0),
        }
    }

    /// Makes the connection if there is none.
    pub(super) async fn open(&self) -> Result<(), Failure> {
        self.connection().await.map(drop)
    }

    /// Sends a call once. One round trip; two after the server forgot the script.
    pub(super) async fn call(
        &self,
        call: &Call,
        within: Duration,
        way: Way,
    ) -> Result<Reply, Failure> {
        let within = within.min(self.timeouts.response);
        let connected = tokio::time::timeout(within, self.connection()).await;
        let used = connected.map_err(|_| Failure::connecting_timed_out())??;
        self.over(used, call, within, way).await
    }

    /// Sends a call once over the connection that this runtime has, so that it does not overtake what was sent on it
    /// before. `None`: there is none.
    pub(super) async fn call_behind(
        &self,
        home: Option<runtime::Id>,
        call: &Call,
        within: Duration,
    ) -> Option<Result<Reply, Failure>> {
        let used = self.present(home)?;
        Some(self.over(used, call, within.min(self.timeouts.response), Way::Straight).await)
    }

    async fn over(
        &self,
        used: Numbered,
        call: &Call,
        within: Duration,
        way: Way,
    ) -> Result<Reply, Failure> {
        let (number, heals) = (used.number, used.connection.heals());
        let answer = tokio::time::timeout(within, evaluate(used.connection, call, way)).await;
        let result = answer.unwrap_or_else(|_| Err(Failure::timed_out()));
        let failure = result.as_ref().err();
        let impatient = within < self.timeouts.response.min(TELLING);
        if !(impatient && failure.is_some_and(|failure| failure.silent)) {
            self.judge(number, heals, failure);
        }
        result.map(from_value)
    }

    /// Sends a command that is no script; one round trip.
    pub(super) async fn command(&self, words: &[&[u8]]) -> Result<Reply, Failure> {
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

    /// Sends these calls, and after their answers `WAIT`, over one connection: the server speaks of what that connection
    /// has written, and another, made in between, would have written nothing. Each call's answer, and how many replicas
    /// have all of them.
    pub(super) async fn written(
        &self,
        calls: &[Call],
        way: Way,
        replicas: u32,
        within: Duration,
    ) -> Result<(Vec<Result<Reply, Failure>>, u64), Failure> {
        let used = self.connection().await?;
        let (number, heals, mut connection) =
            (used.number, used.connection.heals(), used.connection);
        let asking = async {
            let evaluating = calls.iter().map(|call| evaluate(connection.clone(), call, way));
            let answers = join_all(evaluating).await;
            if answers.iter().all(Result::is_err) {
                return Ok((answers, 0));
            }
            let mut wait = redis::cmd("WAIT");
            wait.arg(replicas).arg(crate::options::whole_ms(within));
            let have = wait.query_async::<u64>(&mut connection).await?;
            Ok((answers, have))
        };
        let answer = tokio::time::timeout(self.timeouts.response, asking).await;
        let result = answer.unwrap_or_else(|_| Err(Failure::timed_out()));
        let failure = match &result {
            Ok((answers, _)) => answers.iter().find_map(|answer| answer.as_ref().err()),
            Err(failure) => Some(failure),
        };
        self.judge(number, heals, failure);
        let (answers, have) = result?;
        Ok((answers.into_iter().map(|answer| answer.map(from_value)).collect(), have))
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

    /// The next calls make connections.
    pub(super) fn reopen(&self) {
        self.connections().clear();
    }

    fn spend(&self, number: u64) {
        self.connections().retain(|open| open.number != number);
        self.silent.store(0, Ordering::Relaxed);
    }

    fn connections(&self) -> MutexGuard<'_, Vec<Numbered>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn present(&self, home: Option<runtime::Id>) -> Option<Numbered> {
        let serves = |open: &&Numbered| {
            (open.home.is_none() || open.home == home)
                && self.source.is_still_at(open.node.as_ref())
        };
        self.connections().iter().find(serves).cloned()
    }

    async fn connection(&self) -> Result<Numbered, Failure> {
        let home = here();
        if let Some(present) = self.present(home) {
            return Ok(present);
        }
        // Whoever has the turn may be a task of a runtime that stands still: then go on without it.
        let patience = self.timeouts.connect.min(self.timeouts.response / 2);
        let _turn = tokio::time::timeout(patience, self.connecting.lock()).await;
        if let Some(present) = self.present(home) {
            return Ok(present);
        }
        let Made { connection, given, node } = self.source.connect(self.timeouts).await?;
        let home = if given { None } else { home };
        let made = Numbered { number: crate::clock::random(), home, connection, node };
        let mut open = self.connections();
        open.retain(|open| self.source.is_still_at(open.node.as_ref()));
        if open.len() >= MOST_CONNECTIONS {
            open.remove(0);
        }
        open.push(made.clone());
        Ok(made)
    }
}

/// The response timeout is ours, call by call; the client library's own is off.
pub(super) fn config(timeouts: Timeouts) -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(timeouts.connect))
        .set_response_timeout(None)
}

async fn evaluate(mut connection: Connection, call: &Call, way: Way) -> Result<Value, Failure> {
    let hash = call.script.hash(|source| redis::Script::new(source).get_hash().to_owned());
    let digest = command("EVALSHA", hash.as_bytes(), call);
    match send(&mut connection, digest, way).await {
        // Surely not run, so asking with the whole text is no resend.
        Err(failure) if failure.no_script => {
            let whole = command("EVAL", call.script.source().as_bytes(), call);
            send(&mut connection, whole, way).await
        }
        answered => answered,
    }
}

async fn send(connection: &mut Connection, command: Cmd, way: Way) -> Result<Value, Failure> {
    let answer = match way {
        Way::Straight => command.query_async::<Value>(connection).await,
        Way::Asking => asking(connection, command).await,
    };
    answer.map_err(Failure::from)
}

/// In one piece, so that nothing comes between: `ASKING` is for the next command only.
async fn asking(connection: &mut Connection, command: Cmd) -> redis::RedisResult<Value> {
    let mut both = redis::pipe();
    both.cmd("ASKING").add_command(command);
    let answers = connection.req_packed_commands(&both, 0, 2).await?;
    answers.into_iter().next_back().unwrap_or(Value::Nil).extract_error()
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
