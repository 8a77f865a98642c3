//! The wrong way: a session that takes one node for the whole cluster.

use leasehold::{AcquireError, BackendError, BackendErrorKind, MultiLock, Mutex, Options, Session};
use leasehold_examples::Failure;
use leasehold_examples::program::{until_interrupted, with_session};

use crate::cluster::Cluster;
use crate::objects::Object;

/// How many names are tried: a third of them happens to work.
const NAMES: u32 = 6;

pub(crate) async fn run(cluster: &Cluster) -> Result<(), Failure> {
    println!("a session at node 1, made as for a single server:");
    let node = &cluster.urls()[0];
    with_session(Session::builder(node)?, async |session| {
        until_interrupted(async {
            // All at once: each is asked again and again, as if the slot were on its way, until its time is over.
            let names = (1..=NAMES).map(|number| format!("order:{number}"));
            let mutexes =
                names.clone().map(|name| Mutex::new(session, name, Options::default()));
            let tries = mutexes.map(|mutex| {
                mutex.map(|mutex| tokio::spawn(async move { mutex.try_acquire().await }))
            });
            let tries = tries.collect::<Result<Vec<_>, _>>()?;
            let mut refused = 0;
            for (name, tried) in names.zip(tries) {
                let tried = refusal(tried.await?)?;
                refused += u32::from(say(&name, tried.as_ref(), BackendErrorKind::Server)?);
            }
            let [one, other] =
                Object::Across.pair().map(|name| Mutex::new(session, name, Options::default()));
            let tried = refusal(MultiLock::of(&one?).and(&other?).try_acquire().await)?;
            say("two accounts", tried.as_ref(), BackendErrorKind::CrossSlot)?;
            Err(format!(
                "{refused} of {NAMES} names cannot be locked by a session of one node: use Session::cluster_builder"
            )
            .into())
        })
        .await
    })
    .await
}

/// What Redis refused it with; a guard is dropped, which releases.
fn refusal<T>(tried: Result<Option<T>, AcquireError>) -> Result<Option<BackendError>, Failure> {
    match tried {
        Ok(_guard) => Ok(None),
        Err(AcquireError::Backend(error)) => Ok(Some(error)),
        Err(error) => Err(error.into()),
    }
}

/// Whether it was refused, which must be by an error of this kind.
fn say(
    name: &str,
    refused: Option<&BackendError>,
    kind: BackendErrorKind,
) -> Result<bool, Failure> {
    match refused {
        None => println!("  {name:<13}held: its slot happens to be here"),
        Some(error) if error.kind() == kind => {
            println!("  {name:<13}refused, kind {kind:?}: {error}");
        }
        Some(error) => return Err(format!("{name}: {:?}, not {kind:?}", error.kind()).into()),
    }
    Ok(refused.is_some())
}
