//! A process that uses one latch, as it is told line by line.
//!
//! `latch_worker URL NAME EXPIRES_MS`, then on standard input, each answered by one line:
//!
//! - `arm COUNT`: `armed true` or `armed false`
//! - `count`, `count_down`, `count_down_as ID`: `left COUNT`
//! - `wait`: `open`; `reset`: `reset true` or `reset false`
//! - `spin`: `spinning`, and then it arms, waits, counts and resets for ever
//! - `shutdown`: `down`
//!
//! and what fails: `failed WHY`.

use std::time::Duration;

use leasehold_latch::{Latch, LatchError, LatchOptions, Session};
use tokio::io::{AsyncBufReadExt, BufReader};

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().expect("URL NAME EXPIRES_MS");
    let (url, name, expires_ms) = (next(), next(), next());
    let expires = Duration::from_millis(expires_ms.parse().expect("a number"));
    let session = Session::connect(&url).await.expect("a session");
    let options = LatchOptions::default().expires_after(expires).max_wait(Duration::from_secs(60));
    let latch = Latch::new(&session, name, options).expect("a latch");
    println!("ready");
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(order)) = orders.next_line().await {
        let words: Vec<_> = order.split_whitespace().collect();
        let answer = match *words.as_slice() {
            ["arm", count] => {
                let armed = latch.arm(count.parse().expect("a number")).await;
                armed.map(|armed| format!("armed {armed}"))
            }
            ["count"] => latch.count().await.map(left),
            ["count_down"] => latch.count_down().await.map(left),
            ["count_down_as", id] => latch.count_down_as(id).await.map(left),
            ["wait"] => latch.wait().await.map(|()| "open".to_owned()),
            ["reset"] => latch.reset().await.map(|reset| format!("reset {reset}")),
            ["spin"] => {
                tokio::spawn(spin(latch.clone()));
                Ok("spinning".to_owned())
            }
            ["shutdown"] => {
                session.shutdown(Duration::from_secs(5)).await.expect("all is confirmed");
                Ok("down".to_owned())
            }
            _ => panic!("not an order: {order}"),
        };
        println!("{}", answer.unwrap_or_else(|error| format!("failed {error:?}")));
    }
}

fn left(left: u64) -> String {
    format!("left {left}")
}

/// Everything that writes, again and again.
async fn spin(latch: Latch) -> Result<(), LatchError> {
    loop {
        latch.arm(3).await?;
        let waits = latch.clone();
        let waits = tokio::spawn(async move { waits.wait().await });
        for id in ["a", "b"] {
            latch.count_down_as(id).await?;
        }
        latch.count_down().await?;
        drop(waits.await);
        latch.reset().await?;
    }
}
