//! What a session has to know of TLS; the rest is the client library's.

use redis::{ConnectionAddr, ConnectionInfo, RedisError};

use super::address::is_encrypted;

/// Whether rustls has something to encrypt with. Without, it panics at the first connection: in the session's thread,
/// where nobody would be told why.
#[cfg(feature = "tokio-rustls-comp")]
pub(super) fn has_provider() -> bool {
    // If it was built with exactly one, it takes that one, and says so in no other way than by going on.
    rustls::crypto::CryptoProvider::get_default().is_some()
        || std::panic::catch_unwind(|| drop(rustls::ClientConfig::builder())).is_ok()
}

/// Native TLS, or none: nothing has to be installed.
#[cfg(not(feature = "tokio-rustls-comp"))]
pub(super) fn has_provider() -> bool {
    true
}

/// Whether one side refused the other: a certificate, or no version of TLS that both speak.
#[cfg(feature = "tokio-rustls-comp")]
pub(super) fn is_refusal(error: &RedisError) -> bool {
    use std::error::Error;
    use std::sync::Arc;
    let cause =
        error.source().and_then(|cause| cause.downcast_ref::<Arc<dyn Error + Send + Sync>>());
    let inside = cause.and_then(|cause| cause.downcast_ref::<std::io::Error>());
    inside.and_then(std::io::Error::get_ref).is_some_and(|cause| cause.is::<rustls::Error>())
}

/// What a port with and a client without TLS do to each other, or the other way round. Other troubles look the same.
pub(super) fn mismatch(info: &ConnectionInfo, error: &RedisError) -> Option<&'static str> {
    let plain = matches!(info.addr(), ConnectionAddr::Tcp(..));
    if is_encrypted(info) && error.is_timeout() {
        return Some("no answer in time to a greeting by TLS (does that port speak it?)");
    }
    (plain && error.is_connection_dropped() && !error.is_connection_refusal())
        .then_some("the link was closed before an answer (does that port want TLS?)")
}

/// What other libraries say is not looked into.
#[cfg(not(feature = "tokio-rustls-comp"))]
pub(super) fn is_refusal(_: &RedisError) -> bool {
    false
}
