//! The process that replaces the configuration.

use std::path::Path;
use std::time::{Duration, Instant};

use leasehold::rwlock::DowngradeError;
use leasehold::{AcquireError, RwLock};
use leasehold_examples::Failure;
use leasehold_examples::program::{self, Instructions, with_session};

use crate::config::{self, Config};

/// What it is told: `reload VERSION`.
///
/// What it tells: `writes VERSION` and how long it waited, in ms; `verified VERSION` and how many read beside it, or
/// `unverified VERSION`; `lost`, a hold that ended before its time.
pub(crate) async fn run(is_locked: bool, folder: &str) -> Result<(), Failure> {
    let folder = Path::new(folder);
    with_session(program::session_builder()?, async |session| {
        let lock = crate::lock(session, "writer")?;
        let mut instructions = Instructions::new()?;
        while let Some(line) = instructions.next().await? {
            let version = line.strip_prefix("reload ").ok_or("a writer only reloads")?.parse()?;
            let work = async {
                if !is_locked {
                    return reload_unlocked(folder, version).await;
                }
                while !reload(&lock, folder, version).await? {
                    println!("lost"); // an alarm; what is half written is written anew
                }
                Ok(())
            };
            tokio::select! {
                done = work => done?,
                line = instructions.next() => match line? {
                    Some(line) => return Err(format!("too early: {line}").into()),
                    None => return Ok(()), // told to end: the work is dropped, and its guard with it
                },
            }
        }
        Ok(())
    })
    .await
}

/// `false` if the hold was lost, and the two files may not belong together.
async fn reload(lock: &RwLock, folder: &Path, version: u32) -> Result<bool, Failure> {
    let asked = Instant::now();
    let writing = match lock.write().acquire().await {
        Ok(guard) => guard,
        // Granted, but this process was too slow to notice.
        Err(AcquireError::ValidityTooShort { .. }) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    say_it_writes(version, asked.elapsed());
    let token = Some(writing.fencing_token());
    match writing.while_held(config::replace(folder, version, token)).await {
        Ok(replaced) => replaced?,
        Err(_lost) => return Ok(false),
    }
    // On as a reader: who waits to read comes in at once, and nobody can write before the check is done.
    let reading = match lock.downgrade(writing).await {
        Ok(guard) => guard,
        Err(DowngradeError::Lost(_)) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let Ok(config) = reading.while_held(Config::read(folder)).await else { return Ok(false) };
    let beside = lock.holders().await?.readers.len().saturating_sub(1);
    let is_verified = config?.version() == Some(version);
    let is_held = reading.release().await.is_ok();
    if is_held {
        say_it_is_checked(is_verified, version, beside);
    }
    Ok(is_held)
}

async fn reload_unlocked(folder: &Path, version: u32) -> Result<(), Failure> {
    say_it_writes(version, Duration::ZERO);
    config::replace(folder, version, None).await?;
    let config = Config::read(folder).await?;
    say_it_is_checked(config.version() == Some(version), version, 0);
    Ok(())
}

fn say_it_writes(version: u32, waited: Duration) {
    println!("writes {version} {}", waited.as_millis());
}

fn say_it_is_checked(is_verified: bool, version: u32, beside: usize) {
    if is_verified {
        println!("verified {version} {beside}");
    } else {
        println!("unverified {version}");
    }
}
