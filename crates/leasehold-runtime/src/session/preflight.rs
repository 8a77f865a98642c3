//! Preflight: is this server a place for locks?

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use leasehold_lua::wire::{Push, acquisition_id};
use leasehold_lua::{
    Acquisition, Call, Keys, Mode, ObjectName, Reply, Settings, Share, Verbs, mutex, rwlock,
    semaphore,
};

use super::link::{Link, Shared};
use crate::backend::Place;
use crate::clock::{random, wall};
use crate::error::{BackendError, BackendErrorKind};

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Subject {
    /// Server and version.
    Server,
    /// Master or replica.
    Role,
    /// What happens at maxmemory.
    Eviction,
    /// What a restart forgets.
    Persistence,
    /// What a failover forgets.
    Replicas,
    /// What the user may do.
    Rights,
    /// The server's clock.
    Clock,
    /// Whether messages reach the session.
    Messages,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// As it should be.
    Good,
    /// Worth knowing.
    Note,
    /// Locks work, and can break.
    Warning,
    /// Locks do not work.
    Problem,
}

/// One thing that preflight looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What it is about.
    pub subject: Subject,
    /// How bad it is.
    pub severity: Severity,
    /// What it is, and what that means for locks.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {:?}: {}", self.severity, self.subject, self.text)
    }
}

/// What preflight found. `Display` prints a line a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preflight {
    /// In the order of [`Subject`].
    pub findings: Vec<Finding>,
}

impl Preflight {
    /// The worst of the findings.
    pub fn worst(&self) -> Severity {
        self.findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Good)
    }

    /// The findings about one subject.
    pub fn about(&self, subject: Subject) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.subject == subject)
    }
}

impl fmt::Display for Preflight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.findings.iter().try_for_each(|finding| writeln!(f, "{finding}"))
    }
}

/// One place after another: in a cluster each master, and each finding names its own.
pub(super) async fn run(link: &Link) -> Result<Preflight, BackendError> {
    let shared = link.shared();
    let places = shared.own.places().await.map_err(|failure| failure.error)?;
    let mut findings = Vec::new();
    for place in &places {
        let mut found = look_at(shared, place).await?;
        if places.len() > 1 {
            found.iter_mut().for_each(|finding| finding.text.insert_str(0, &format!("{place}: ")));
        }
        findings.extend(found);
    }
    findings.sort_by_key(|finding| finding.subject as u8);
    Ok(Preflight { findings })
}

async fn look_at(shared: &Shared, place: &Place) -> Result<Vec<Finding>, BackendError> {
    let mut findings = match info(shared, place).await? {
        Some(info) => {
            vec![server(&info), role(&info), eviction(&info), persistence(&info), replicas(&info)]
        }
        None => vec![finding(
            Subject::Server,
            Severity::Note,
            "INFO is not permitted: version, role, eviction, persistence and replicas are unknown",
        )],
    };
    findings.extend(rights(shared, place).await?);
    findings.push(clock(shared, place).await?);
    findings.push(messages(shared, place).await?);
    Ok(findings)
}

fn finding(subject: Subject, severity: Severity, text: impl Into<String>) -> Finding {
    Finding { subject, severity, text: text.into() }
}

type Info = HashMap<String, String>;

async fn info(shared: &Shared, place: &Place) -> Result<Option<Info>, BackendError> {
    match shared.own.command(place, &[b"INFO"]).await {
        Ok(Reply::Bytes(text)) => Ok(Some(parse(&String::from_utf8_lossy(&text)))),
        Ok(Reply::Nil | Reply::Int(_) | Reply::List(_)) => Ok(None),
        Err(failure) if failure.error.kind() == BackendErrorKind::NoPermission => Ok(None),
        Err(failure) => Err(failure.error),
    }
}

fn parse(text: &str) -> Info {
    let pairs = text.lines().filter_map(|line| line.trim_end().split_once(':'));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn is(info: &Info, key: &str, value: &str) -> bool {
    info.get(key).is_some_and(|found| found == value)
}

fn server(info: &Info) -> Finding {
    let (name, version) = match (info.get("valkey_version"), info.get("redis_version")) {
        (Some(version), _) => ("valkey", version.as_str()),
        (None, Some(version)) => ("redis", version.as_str()),
        (None, None) => ("an unknown server", ""),
    };
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if found < (6, 2) {
        return finding(
            Subject::Server,
            Severity::Problem,
            format!("{name} {version}: 6.2 is the oldest that works"),
        );
    }
    finding(Subject::Server, Severity::Good, format!("{name} {version}"))
}

fn role(info: &Info) -> Finding {
    if is(info, "role", "master") {
        return finding(Subject::Role, Severity::Good, "master");
    }
    finding(Subject::Role, Severity::Problem, "a replica: it refuses every acquire and release")
}

fn eviction(info: &Info) -> Finding {
    let policy = info.get("maxmemory_policy").map_or("unknown", String::as_str);
    if is(info, "maxmemory", "0") {
        return finding(Subject::Eviction, Severity::Good, "no maxmemory: nothing is evicted");
    }
    if policy == "noeviction" {
        let text =
            "noeviction: at maxmemory acquires are refused, while renewals and releases go on";
        return finding(Subject::Eviction, Severity::Good, text);
    }
    let text =
        format!("{policy}: at maxmemory a held lock can be evicted, and somebody else takes it");
    finding(Subject::Eviction, Severity::Warning, text)
}

fn persistence(info: &Info) -> Finding {
    if is(info, "aof_enabled", "1") {
        let text = "append-only file: a crash forgets at most what was not yet written (one second by default)";
        return finding(Subject::Persistence, Severity::Good, text);
    }
    let text = "no append-only file: a restart forgets the newest holds, or all; for up to one lease two may hold";
    finding(Subject::Persistence, Severity::Note, text)
}

fn replicas(info: &Info) -> Finding {
    let count = info.get("connected_slaves").map_or("0", String::as_str);
    if count == "0" {
        return finding(Subject::Replicas, Severity::Good, "none: no failover can lose a hold");
    }
    let least = match info.get("min_slaves_good_slaves") {
        Some(_) => "min-replicas-to-write is set, which shortens that moment",
        None => "min-replicas-to-write is not set",
    };
    let text = format!(
        "{count}: a failover forgets the holds of the last moment, and two may hold; {least}"
    );
    finding(Subject::Replicas, Severity::Note, text)
}

/// A kind of lock that is tried: one holds, another waits and is granted by the release.
struct Trial {
    /// Before the name of a verb.
    whose: &'static str,
    /// How bad it is if a verb does not work.
    severity: Severity,
    verbs: &'static Verbs,
    /// Of the holder and of the waiter.
    shares: [Share; 2],
    settings: Settings,
    inspect: fn(&Keys) -> Call,
}

/// The mutex first: what it needs all need.
fn trials() -> [Trial; 3] {
    let mutex = Trial {
        whose: "",
        severity: Severity::Problem,
        verbs: &mutex::VERBS,
        shares: [Share::Exclusive; 2],
        settings: Settings::default(),
        inspect: mutex::inspect,
    };
    let rwlock = Trial {
        whose: "a read-write lock's ",
        severity: Severity::Warning,
        verbs: &rwlock::VERBS,
        shares: [Share::Read, Share::Exclusive],
        settings: Settings::default(),
        inspect: |keys| rwlock::inspect(keys, 1),
    };
    let semaphore = Trial {
        whose: "a semaphore's ",
        severity: Severity::Warning,
        verbs: &semaphore::VERBS,
        shares: [Share::Weight(1); 2],
        settings: semaphore::settings(1, false),
        inspect: |keys| semaphore::inspect(keys, 1),
    };
    [mutex, rwlock, semaphore]
}

/// Every verb once, on locks of random names: what is missing shows before the first job does.
async fn rights(shared: &Shared, place: &Place) -> Result<Vec<Finding>, BackendError> {
    let mut missing = Vec::new();
    for trial in trials() {
        let keys = keys_at(shared, place, trial.verbs.kind);
        for (verb, call) in trial.calls(shared, &keys) {
            match shared.own.call(&call, shared.settings.response_timeout).await {
                Ok(_) => {}
                Err(failure) if failure.error.kind() == BackendErrorKind::Unreachable => {
                    return Err(failure.error);
                }
                Err(failure) => {
                    let text = format!("{}{verb} does not work: {}", trial.whose, failure.error);
                    missing.push(finding(Subject::Rights, trial.severity, text));
                }
            }
        }
        // A limit or a token would stay for a while: nobody needs those of this name. Refused, they do.
        drop(shared.own.command(place, &[b"DEL", &keys.holds, &keys.token]).await);
        if missing.iter().any(|one| one.severity == Severity::Problem) {
            break;
        }
    }
    if missing.is_empty() {
        missing.push(finding(Subject::Rights, Severity::Good, "every script runs"));
    }
    Ok(missing)
}

impl Trial {
    fn calls(&self, shared: &Shared, keys: &Keys) -> [(&'static str, Call); 8] {
        const LEASE_MS: u64 = 1_000;
        let [held, waiting] = self.shares.map(|share| {
            acquisition_id(&format!("{:016x}", random()), LEASE_MS, share, &shared.identity.inbox)
        });
        let holder = Acquisition { id: &held, owner: "preflight", note: b"", lease_ms: LEASE_MS };
        let waiter = Acquisition { id: &waiting, owner: "another", ..holder };
        let (verbs, terms) = (self.verbs, shared.terms());
        let wait = Mode::Wait { max_waiters: None };
        [
            ("acquire", verbs.acquire(keys, &self.settings, holder, wait, terms)),
            ("waiting", verbs.acquire(keys, &self.settings, waiter, wait, terms)),
            ("the check", verbs.check(keys, &self.settings, [(waiter, 0)], false, terms)),
            ("renewal", verbs.renew(keys, &held, LEASE_MS)),
            ("holder", (self.inspect)(keys)),
            ("queue", mutex::queue(keys, 1)),
            ("release", verbs.release(keys, &held, false, 0, terms)),
            ("cancelling", verbs.release(keys, &waiting, false, 0, terms)),
        ]
    }
}

/// A random name that lives there. With one server the first does; a cluster of hundreds of masters has one within a
/// few thousand.
fn keys_at(shared: &Shared, place: &Place, kind: &str) -> Keys {
    let prefix = &shared.settings.prefix;
    let mut tries = 0;
    loop {
        let name = format!("preflight-{:016x}", random());
        let keys = Keys::new(ObjectName { prefix, kind, group: None, name: name.as_bytes() });
        tries += 1;
        if tries > 10_000 || shared.backend.place_of(&keys.holds) == *place {
            return keys;
        }
    }
}

async fn clock(shared: &Shared, place: &Place) -> Result<Finding, BackendError> {
    let before = wall();
    let reply = match shared.own.command(place, &[b"TIME"]).await {
        Ok(reply) => reply,
        Err(failure) if failure.error.kind() == BackendErrorKind::NoPermission => {
            return Ok(finding(
                Subject::Clock,
                Severity::Problem,
                "TIME is not permitted: no script can run",
            ));
        }
        Err(failure) => return Err(failure.error),
    };
    let ours = before + wall().saturating_sub(before) / 2;
    let theirs = seconds(&reply);
    let apart = theirs.abs_diff(ours);
    let text =
        format!("{apart:?} from the local clock; leases and tokens come from the server's alone");
    let severity = if apart > Duration::from_secs(5) { Severity::Note } else { Severity::Good };
    Ok(finding(Subject::Clock, severity, text))
}

fn seconds(time: &Reply) -> Duration {
    let Reply::List(parts) = time else { return Duration::ZERO };
    let mut numbers = parts.iter().map(|part| match part {
        Reply::Bytes(text) => String::from_utf8_lossy(text).parse().unwrap_or(0),
        Reply::Nil | Reply::Int(_) | Reply::List(_) => 0,
    });
    Duration::from_secs(numbers.next().unwrap_or(0))
        + Duration::from_micros(numbers.next().unwrap_or(0))
}

async fn messages(shared: &Shared, place: &Place) -> Result<Finding, BackendError> {
    let sent = shared.own.publish(place, &shared.identity.inbox, &Push::proof("preflight")).await;
    match sent {
        Ok(0) => {
            let text = "nobody listens on the inbox just now: waiters are served by the check, up to a second late";
            Ok(finding(Subject::Messages, Severity::Warning, text))
        }
        Ok(_) => Ok(finding(Subject::Messages, Severity::Good, "the inbox listens")),
        Err(failure) if failure.error.kind() == BackendErrorKind::NoPermission => {
            let text = format!(
                "grants cannot be pushed: {}; waiters are served by the check",
                failure.error
            );
            Ok(finding(Subject::Messages, Severity::Warning, text))
        }
        Err(failure) => Err(failure.error),
    }
}
