//! The server: HTTP/1.1 by hand, one call a connection. It counts what is in flight and refuses what is too much.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold_examples::Failure;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// How long a call takes.
pub(crate) const WORK: Duration = Duration::from_millis(100);

/// A running server. Dropped, it stops.
pub(crate) struct Api {
    address: SocketAddr,
    counts: Arc<Mutex<Counts>>,
    accepting: JoinHandle<()>,
}

/// What the server counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    /// The most calls that it allows at a time.
    pub(crate) limit: u32,
    pub(crate) in_flight: u32,
    /// The most that were in flight since `since`, as all below.
    pub(crate) peak: u32,
    pub(crate) served: u32,
    pub(crate) refused: u32,
    pub(crate) since: Instant,
}

impl Counts {
    fn new(limit: u32) -> Self {
        Self { limit, in_flight: 0, peak: 0, served: 0, refused: 0, since: Instant::now() }
    }

    fn begin(&mut self) -> bool {
        let fits = self.in_flight < self.limit;
        if fits {
            self.in_flight += 1;
            self.peak = self.peak.max(self.in_flight);
        } else {
            self.refused += 1;
        }
        fits
    }

    fn end(&mut self) {
        self.in_flight -= 1;
        self.served += 1;
    }
}

impl Api {
    pub(crate) async fn start(limit: u32) -> Result<Self, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let counts = Arc::new(Mutex::new(Counts::new(limit)));
        let accepting = tokio::spawn(accept(listener, counts.clone()));
        Ok(Self { address, counts, accepting })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn counts(&self) -> Counts {
        *self.counts.lock().expect("no panic in it")
    }

    /// Begins to count anew; answers what there was.
    pub(crate) fn count_anew(&self) -> Counts {
        let mut counts = self.counts.lock().expect("no panic in it");
        let (limit, in_flight) = (counts.limit, counts.in_flight);
        std::mem::replace(&mut *counts, Counts { in_flight, peak: in_flight, ..Counts::new(limit) })
    }

    pub(crate) fn allow(&self, limit: u32) {
        self.counts.lock().expect("no panic in it").limit = limit;
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, counts: Arc<Mutex<Counts>>) {
    let mut calls = JoinSet::new();
    loop {
        tokio::select! {
            Ok((stream, _)) = listener.accept() => {
                calls.spawn(answer(stream, counts.clone()));
            }
            Some(_) = calls.join_next() => {} // a caller that is gone is none of the server's errors
        }
    }
}

/// A call runs to its end though its caller may be gone, as in most services.
async fn answer(mut stream: TcpStream, counts: Arc<Mutex<Counts>>) -> io::Result<()> {
    let mut head = BufReader::new(&mut stream).lines();
    while head.next_line().await?.is_some_and(|line| !line.is_empty()) {}
    let fits = counts.lock().expect("no panic in it").begin();
    let status = if fits {
        tokio::time::sleep(WORK).await;
        counts.lock().expect("no panic in it").end();
        "200 OK"
    } else {
        "503 Service Unavailable"
    };
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(answer.as_bytes()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_more_than_the_limit_is_refused() {
        let mut counts = Counts::new(2);
        assert_eq!([counts.begin(), counts.begin(), counts.begin()], [true, true, false]);
        counts.end();
        assert!(counts.begin());
        assert_eq!((counts.peak, counts.served, counts.refused), (2, 1, 1));
    }
}
