//! The process that waits at each stop.

use std::time::Duration;

use leasehold::Session;
use leasehold_examples::Failure;
use leasehold_examples::program::{Instructions, with_session};
use tokio::task::JoinSet;

use crate::objects::{self, Held, Object, Who};

/// What it is told: an object, to take it, or to wait for it if it is a latch; `release`.
///
/// What it tells: `held`, how many holds have arrived by a push so far, and the tokens; `opened`; `released`.
pub(crate) async fn run(nodes: &[&str]) -> Result<(), Failure> {
    with_session(Session::cluster_builder(nodes)?, async |session| {
        let (mut instructions, mut tasks) = (Instructions::new()?, JoinSet::new());
        let mut held = None;
        loop {
            tokio::select! {
                line = instructions.next() => match line?.as_deref() {
                    Some("release") => {
                        let held: Held = held.take().ok_or("nothing is held")?;
                        held.release().await?;
                        println!("released");
                    }
                    Some(name) => {
                        tasks.spawn(wait_for(session.clone(), name.parse()?));
                    }
                    None => return Ok(()),
                },
                Some(done) = tasks.join_next() => {
                    held = done??;
                    say(session, held.as_ref());
                }
            }
        }
    })
    .await
}

/// What it has now; nothing, if it waited for the latch.
async fn wait_for(session: Session, object: Object) -> Result<Option<Held>, Failure> {
    if object == Object::Latch {
        objects::latch(&session)?.wait_within(Duration::from_secs(20)).await?;
        return Ok(None);
    }
    Ok(Some(object.take(&session, Who::Visitor).await?))
}

fn say(session: &Session, held: Option<&Held>) {
    let Some(held) = held else { return println!("opened") };
    let tokens: Vec<_> = held.tokens().iter().map(u64::to_string).collect();
    println!("held {} {}", session.statistics().pushed_grants, tokens.join(" "));
}
