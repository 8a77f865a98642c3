//! A job that holds far longer than its lease, twice: undisturbed, and with an operator who ends its hold in the middle.
//! `scripts/with-redis cargo run -p leasehold-examples --bin long_job`
//!
//! The lease is 1 s and the job takes more than 3 s: the session renews it. When the hold is lost, `while_held` drops the
//! job's future at its next await point; the job then takes the lock again and goes on where its books end. The books check
//! the fencing token, so a step of an earlier hold that comes late would change nothing.

use std::collections::BTreeMap;
use std::sync::Mutex as LocalMutex;
use std::time::{Duration, Instant};

use leasehold::{Event, FencingToken, Mutex, Options, Session};
use leasehold_examples::orders::{self, Order};
use leasehold_examples::{Failure, report};

const LEASE: Duration = Duration::from_secs(1);
/// So many orders are read at a time …
const PAGE: usize = 150;
/// … from a source that takes so long for it.
const READING: Duration = Duration::from_millis(80);
/// The operator loses patience after so many pages.
const PATIENCE: usize = 12;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = std::env::var("REDIS_URL").map_err(|_| "REDIS_URL is not set")?;
    let session = Session::builder(&url)?
        .held_long_after(2 * LEASE)
        .on_event(|event| println!("  event: {}", in_words(event)))
        .connect()
        .await?;
    // A lease never says how long a job may take; `hold_at_most` does (10 min unless it is set).
    let options = Options::default().lease(LEASE).label("nightly sum");
    let mutex = Mutex::new(&session, "nightly-sum", options)?;

    println!("discs by product, in {}", orders::SOURCE);
    println!("\nfirst run: nobody disturbs it");
    let undisturbed = LocalMutex::default();
    sum(&mutex, &undisturbed).await?;

    println!("\nsecond run: an operator ends its hold by force");
    let disturbed = LocalMutex::default();
    let (summed, ended) = tokio::join!(sum(&mutex, &disturbed), operator(&url, &disturbed));
    summed.and(ended)?;

    session.shutdown(Duration::from_secs(2)).await?;
    let [undisturbed, disturbed] =
        [undisturbed, disturbed].map(|books| books.into_inner().expect("no panic in it").discs);
    println!("\n{}", table(&undisturbed));
    if undisturbed != disturbed {
        return Err("the two runs came to different sums".into());
    }
    println!("both runs came to the same sums");
    Ok(())
}

/// The job: one hold if nothing happens, else as many as it takes.
async fn sum(mutex: &Mutex, books: &LocalMutex<Books>) -> Result<(), Failure> {
    let pages: Vec<Vec<Order>> = orders::all().chunks(PAGE).map(<[Order]>::to_vec).collect();
    loop {
        let guard = mutex.acquire().await?;
        let (token, began) = (guard.fencing_token(), Instant::now());
        println!("  held under token {token}, from page {} on", next_page(books));
        match guard.while_held(book_the_rest(&pages, books, token)).await {
            Ok(booked) => {
                booked?;
                let took = began.elapsed();
                guard.release().await?; // an error says that the hold had ended before: an alarm
                let leases = took.as_secs_f64() / LEASE.as_secs_f64();
                println!("  done: held for {:.1} s, {leases:.1} leases", took.as_secs_f64());
                return Ok(());
            }
            // The job's future is gone. What it booked is booked, and nothing more will come of it.
            Err(lost) => println!("  stopped: {lost}"),
        }
    }
}

async fn book_the_rest(
    pages: &[Vec<Order>],
    books: &LocalMutex<Books>,
    token: FencingToken,
) -> Result<(), Stale> {
    for (number, page) in pages.iter().enumerate().skip(next_page(books)) {
        tokio::time::sleep(READING).await;
        books.lock().expect("no panic in it").book(number, page, token)?;
    }
    Ok(())
}

fn next_page(books: &LocalMutex<Books>) -> usize {
    books.lock().expect("no panic in it").next_page
}

/// Somebody with a session of his own: it names who holds, and ends that.
async fn operator(url: &str, books: &LocalMutex<Books>) -> Result<(), Failure> {
    let session = Session::connect(url).await?;
    let mutex = Mutex::new(&session, "nightly-sum", Options::default())?;
    while next_page(books) < PATIENCE {
        tokio::time::sleep(READING / 4).await;
    }
    match mutex.force_release().await? {
        Some(holder) => println!("  operator: ended the hold of {holder}"),
        None => return Err("nobody held".into()),
    }
    Ok(session.shutdown(Duration::from_secs(2)).await?)
}

/// What the job has come to. In a service this is a row of the database.
#[derive(Debug, Default)]
struct Books {
    discs: BTreeMap<&'static str, i64>,
    next_page: usize,
    /// The largest token that was seen here.
    fence: u64,
}

/// A step of an earlier hold: a later one has booked already.
#[derive(Debug, thiserror::Error)]
#[error("token {token} is older than {seen}, which was here already")]
struct Stale {
    token: u64,
    seen: u64,
}

impl Books {
    /// Refuses smaller tokens, accepts equal ones; as one step with the booking itself.
    fn book(&mut self, page: usize, orders: &[Order], token: FencingToken) -> Result<(), Stale> {
        self.admit(token.get())?;
        for order in orders {
            *self.discs.entry(order.product).or_default() += order.quantity;
        }
        self.next_page = page + 1;
        Ok(())
    }

    fn admit(&mut self, token: u64) -> Result<(), Stale> {
        if token < self.fence {
            return Err(Stale { token, seen: self.fence });
        }
        self.fence = token;
        Ok(())
    }
}

fn in_words(event: &Event) -> String {
    if let Event::HeldLong { name, held_for } = event {
        return format!("{name} is held for {:.1} s", held_for.as_secs_f64());
    }
    if let Event::Lost { name, reason } = event {
        return format!("{name} was lost: {reason}");
    }
    if let Event::ReleaseLost { name, reason } = event {
        return format!("{name} had ended before its release: {reason}");
    }
    format!("{event:?}")
}

fn table(discs: &BTreeMap<&'static str, i64>) -> String {
    let mut rows: Vec<_> = discs.iter().collect();
    rows.sort_by_key(|&(product, discs)| (-discs, product));
    let mut table = String::from("product  discs\n");
    for (product, discs) in rows.iter().take(5) {
        table.push_str(&format!("{product:<7} {discs:>6}\n"));
    }
    let all = report::grouped(discs.values().sum::<i64>());
    table.push_str(&format!("… {} products, {all} discs in all", discs.len()));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_books_refuse_smaller_tokens_and_accept_equal_ones() {
        let mut books = Books::default();
        assert!(books.admit(7).is_ok() && books.admit(7).is_ok() && books.admit(9).is_ok());
        assert_eq!(
            books.admit(8).unwrap_err().to_string(),
            "token 8 is older than 9, which was here already"
        );
        assert_eq!(books.fence, 9);
    }
}
