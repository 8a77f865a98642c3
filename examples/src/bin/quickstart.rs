//! The whole of it in one function: take a lock, work under its token, release, shut down.
//! `scripts/with-redis cargo run -p leasehold-examples --bin quickstart`

use std::time::Duration;

use leasehold::{FencingToken, Mutex, Options, Session};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").map_err(|_| "REDIS_URL is not set")?;
    let session = Session::connect(&url).await?; // one a process
    let done = bill(&session).await;
    // Whatever came of it: a process that ends does not wait for the guards that it dropped.
    session.shutdown(Duration::from_secs(2)).await?;
    done
}

async fn bill(session: &Session) -> Result<(), Box<dyn std::error::Error>> {
    let mutex = Mutex::new(session, "invoice:42", Options::default().label("quick start"))?;

    let guard = mutex.acquire().await?; // waits at most 5 s; the lease is renewed from now on
    let token = guard.fencing_token();
    guard.while_held(send_invoice(42, token)).await??; // dropped if the hold is lost
    guard.release().await?; // Lost: the hold had ended before, an alarm
    Ok(())
}

async fn send_invoice(number: u64, token: FencingToken) -> Result<(), std::io::Error> {
    // UPDATE invoice SET sent = true, fence = $token WHERE number = $number AND fence <= $token
    println!("invoice {number} sent under token {token}");
    Ok(())
}
