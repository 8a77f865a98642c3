//! A process that holds several locks as one, or one lock at several servers, as it is told line by line.
//!
//! `several_worker URL[,URL…] NAME[,NAME…] LEASE_MS`: with several URLs a quorum lock of that name, else a multi-lock of
//! mutexes of these names, in this order. Then on standard input, each answered by one line:
//!
//! - `acquire`: `held TOKEN` (of several the first), or `failed WHY`
//! - `is_held`: `true` or `false`
//! - `release`: `released` or `failed WHY`
//! - `rounds N`: `done`: so many times both, or `failed WHY`

use std::time::Duration;

use leasehold_multi_lock::{MultiGuard, MultiLock, QuorumGuard, QuorumLock, QuorumOptions};
use leasehold_mutex::{Mutex, Options, Session};
use tokio::io::{AsyncBufReadExt, BufReader};

/// Whatever is held in whatever way.
enum Lock {
    Multi(MultiLock),
    Quorum(QuorumLock),
}

enum Guard {
    Multi(MultiGuard),
    Quorum(QuorumGuard),
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().expect("URLS NAMES LEASE_MS");
    let (urls, names, lease_ms) = (next(), next(), next());
    let lease = Duration::from_millis(lease_ms.parse().expect("a number"));
    let lock = lock(&urls, &names, lease).await;
    println!("ready");
    let mut guard = None;
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(order)) = orders.next_line().await {
        let words: Vec<_> = order.split_whitespace().collect();
        let answer = match *words.as_slice() {
            ["acquire"] => match lock.acquire().await {
                Ok(taken) => format!("held {}", guard.insert(taken).token()),
                Err(why) => format!("failed {why}"),
            },
            ["is_held"] => guard.as_ref().is_some_and(Guard::is_held).to_string(),
            ["release"] => guard.take().expect("acquire first").release().await,
            ["rounds", count] => lock.rounds(count.parse().expect("a number")).await,
            _ => panic!("not an order: {order}"),
        };
        println!("{answer}");
    }
}

async fn lock(urls: &str, names: &str, lease: Duration) -> Lock {
    let mut sessions = Vec::new();
    for url in urls.split(',') {
        sessions.push(Session::connect(url).await.expect("a session"));
    }
    if sessions.len() > 1 {
        let options = QuorumOptions::default().lease(lease).retries(100);
        return Lock::Quorum(QuorumLock::new(&sessions, names, options).expect("a lock"));
    }
    let options = Options::default().lease(lease).label("several");
    let members = names
        .split(',')
        .map(|name| Mutex::new(&sessions[0], name, options.clone()).expect("legal options"));
    Lock::Multi(MultiLock::all(members).max_wait(Duration::from_secs(60)))
}

impl Lock {
    async fn acquire(&self) -> Result<Guard, String> {
        let told = |error: leasehold_multi_lock::AcquireError| format!("{error:?}");
        match self {
            Self::Multi(lock) => lock.acquire().await.map(Guard::Multi).map_err(told),
            Self::Quorum(lock) => lock.acquire().await.map(Guard::Quorum).map_err(told),
        }
    }

    async fn rounds(&self, count: u32) -> String {
        for _ in 0..count {
            let released = match self.acquire().await {
                Ok(guard) => guard.release().await,
                Err(why) => format!("failed {why}"),
            };
            if released != "released" {
                return released;
            }
        }
        "done".to_owned()
    }
}

impl Guard {
    fn is_held(&self) -> bool {
        match self {
            Self::Multi(guard) => guard.is_held(),
            Self::Quorum(guard) => guard.is_held(),
        }
    }

    fn token(&self) -> u64 {
        match self {
            Self::Multi(guard) => guard.tokens().next().expect("a mutex has one").1.get(),
            Self::Quorum(guard) => guard.fencing_token().get(),
        }
    }

    async fn release(self) -> String {
        let failed = match self {
            Self::Multi(guard) => guard.release().await.err().map(|error| format!("{error:?}")),
            Self::Quorum(guard) => guard.release().await.err().map(|error| format!("{error:?}")),
        };
        failed.map_or_else(|| "released".to_owned(), |why| format!("failed {why}"))
    }
}
