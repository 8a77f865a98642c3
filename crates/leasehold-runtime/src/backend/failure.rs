//! What went wrong with one call, and what that means for it.

use redis::{ConnectionInfo, ErrorKind, RedisError, ServerErrorKind};

use super::tls;
use crate::error::{BackendError, BackendErrorKind as Kind};

/// A call that was not answered as it should be.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    /// For the user.
    pub(crate) error: BackendError,
    /// The script may have run, or may still run. `false` = surely not.
    pub(crate) may_have_run: bool,
    /// Asking again may help.
    pub(crate) transient: bool,
    /// The connection is of no more use: dead, or to a server that became a replica.
    pub(crate) connection_spent: bool,
    /// No answer came in time.
    pub(crate) silent: bool,
    /// The server has forgotten the script.
    pub(super) no_script: bool,
    /// Another node of the cluster is to be asked; this one has surely not run the call.
    pub(super) redirect: Option<Redirect>,
}

/// What a node of a cluster says of a slot that is not its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Redirect {
    /// It belongs to the node at this address (`host:port`; no host: that of who says so).
    Moved(String),
    /// The key is on its way to that node; the slot is not yet.
    Ask(String),
}

/// Words of the server that pass: it loads, fails over, moves slots, or runs somebody's long script.
const PASSING: [&str; 9] = [
    "LOADING",
    "BUSY",
    "TRYAGAIN",
    "CLUSTERDOWN",
    "MASTERDOWN",
    "MOVED",
    "ASK",
    "NOREPLICAS",
    "UNKILLABLE",
];

impl Failure {
    /// Surely not run, and asking again does not help, unless the caller knows better.
    fn told(error: BackendError) -> Self {
        Self {
            error,
            may_have_run: false,
            transient: false,
            connection_spent: false,
            silent: false,
            no_script: false,
            redirect: None,
        }
    }

    pub(crate) fn timed_out() -> Self {
        Self {
            may_have_run: true,
            transient: true,
            silent: true,
            ..Self::told(BackendError::timed_out())
        }
    }

    /// The answer was not of this layout.
    pub(crate) fn unreadable(error: BackendError) -> Self {
        Self { may_have_run: true, ..Self::told(error) }
    }

    /// No connection could be made: the call was not sent.
    pub(crate) fn connecting(error: RedisError) -> Self {
        if tls::is_refusal(&error) {
            // Asking again does not help, as with a password.
            return Self::told(BackendError::new(Kind::Tls, "").with_source(error));
        }
        let failure = Self::from(error);
        Self {
            may_have_run: false,
            transient: failure.error.kind() == Kind::Unreachable || failure.transient,
            ..failure
        }
    }

    /// No connection could be made to this address; the text says so where the two ends may not agree on TLS.
    pub(super) fn connecting_to(info: &ConnectionInfo, error: RedisError) -> Self {
        let mismatch = tls::mismatch(info, &error);
        let failure = Self::connecting(error.clone());
        match mismatch {
            Some(why) if failure.error.kind() == Kind::Unreachable => Self {
                error: BackendError::new(Kind::Unreachable, why).with_source(error),
                ..failure
            },
            Some(_) | None => failure,
        }
    }

    /// A subscription was confirmed, but its messages do not arrive.
    pub(crate) fn undelivered() -> Self {
        let error = BackendError::new(Kind::Unsupported, "a message to the inbox did not arrive");
        Self { transient: true, ..Self::told(error) }
    }

    /// There is nobody to send it to just now.
    pub(super) fn no_master(why: &str) -> Self {
        Self { transient: true, ..Self::told(BackendError::new(Kind::Unreachable, why)) }
    }

    /// The pool gave no connection; `transient` = it may later.
    #[cfg(feature = "deadpool")]
    pub(super) fn pool(why: &str, transient: bool) -> Self {
        Self { transient, ..Self::told(BackendError::new(Kind::Pool, why)) }
    }

    pub(crate) fn connecting_timed_out() -> Self {
        Self { may_have_run: false, ..Self::timed_out() }
    }

    fn server(code: &str, error: RedisError) -> Self {
        let detail = error.detail().unwrap_or_default().to_owned();
        let (kind, code) = server_kind(code, &detail);
        let transient = PASSING.contains(&code) || kind == Kind::ReadOnly;
        let text_of_script = detail.contains("script: ") || detail.contains("user_script");
        let text = if detail.is_empty() { code.to_owned() } else { format!("{code} {detail}") };
        Self {
            // A refusal comes before the script, or (these two) before its first write. What a script met in its midst
            // names the script.
            may_have_run: text_of_script && !matches!(kind, Kind::ReadOnly | Kind::OutOfMemory),
            transient,
            connection_spent: kind == Kind::ReadOnly,
            silent: false,
            no_script: code == "NOSCRIPT",
            redirect: redirect(code, &detail),
            error: BackendError::new(kind, text).with_source(error),
        }
    }
}

/// `MOVED <slot> <host:port>`, `ASK <slot> <host:port>`.
fn redirect(code: &str, detail: &str) -> Option<Redirect> {
    let to = detail.split_once(' ')?.1.to_owned();
    match code {
        "MOVED" => Some(Redirect::Moved(to)),
        "ASK" => Some(Redirect::Ask(to)),
        _ => None,
    }
}

/// An error that a script caught and put into its reply.
pub(crate) fn caught(text: &str) -> BackendError {
    let (code, detail) = text.split_once(' ').unwrap_or((text, ""));
    BackendError::new(server_kind(code, detail).0, text)
}

/// The kind by the error's first word. Servers before 7.0 wrap what a script met in an `ERR`: look inside.
fn server_kind<'a>(code: &'a str, detail: &'a str) -> (Kind, &'a str) {
    const KNOWN: [(&str, Kind); 7] = [
        ("NOAUTH", Kind::Auth),
        ("WRONGPASS", Kind::Auth),
        ("NOPERM", Kind::NoPermission),
        ("WRONGTYPE", Kind::WrongType),
        ("READONLY", Kind::ReadOnly),
        ("OOM", Kind::OutOfMemory),
        ("CROSSSLOT", Kind::CrossSlot),
    ];
    let inside = code == "ERR" && detail.contains("user_script");
    // A right that is missing inside a script is not told by a word of its own.
    if detail.contains("executing the script can't") || detail.contains("ACL failure in script") {
        return (Kind::NoPermission, code);
    }
    let found = KNOWN.iter().find(|(word, _)| *word == code || (inside && detail.contains(word)));
    match found {
        Some((word, kind)) => (*kind, *word),
        None if detail.starts_with("unknown command") => (Kind::Unsupported, code),
        None => (Kind::Server, code),
    }
}

impl From<RedisError> for Failure {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the client's enum is open; what is not named is treated alike"
    )]
    fn from(error: RedisError) -> Self {
        match error.kind() {
            ErrorKind::Server(kind) => {
                let code = error.code().unwrap_or(word_of(kind)).to_owned();
                Self::server(&code, error)
            }
            ErrorKind::Extension => {
                let code = error.code().unwrap_or_default().to_owned();
                Self::server(&code, error)
            }
            ErrorKind::AuthenticationFailed => Self {
                connection_spent: true,
                ..Self::told(BackendError::new(Kind::Auth, "").with_source(error))
            },
            ErrorKind::RESP3NotSupported => Self {
                connection_spent: true,
                ..Self::told(
                    BackendError::new(Kind::Unsupported, "RESP3 is needed").with_source(error),
                )
            },
            _ => Self {
                may_have_run: !error.is_connection_refusal(),
                transient: true,
                connection_spent: !error.is_timeout(),
                silent: error.is_timeout(),
                no_script: false,
                redirect: None,
                error: BackendError::new(Kind::Unreachable, error.category().to_owned())
                    .with_source(error),
            },
        }
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the client's enum is open; what is not named is treated alike"
)]
fn word_of(kind: ServerErrorKind) -> &'static str {
    match kind {
        ServerErrorKind::NoScript => "NOSCRIPT",
        ServerErrorKind::ReadOnly => "READONLY",
        ServerErrorKind::NoPerm => "NOPERM",
        ServerErrorKind::CrossSlot => "CROSSSLOT",
        ServerErrorKind::BusyLoading => "LOADING",
        ServerErrorKind::TryAgain => "TRYAGAIN",
        ServerErrorKind::ClusterDown => "CLUSTERDOWN",
        ServerErrorKind::MasterDown => "MASTERDOWN",
        ServerErrorKind::Moved => "MOVED",
        ServerErrorKind::Ask => "ASK",
        _ => "ERR",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caught_error_has_the_kind_of_its_first_word() {
        let denied = "NOPERM this user has no permissions to run the 'hmget' command";
        assert_eq!(caught(denied).kind(), Kind::NoPermission);
        assert_eq!(caught("WRONGTYPE").kind(), Kind::WrongType);
        assert_eq!(caught("").kind(), Kind::Server);
    }

    #[test]
    fn a_node_that_has_not_the_slot_says_who_has() {
        let to = || "127.0.0.1:7001".to_owned();
        assert_eq!(redirect("MOVED", "3999 127.0.0.1:7001"), Some(Redirect::Moved(to())));
        assert_eq!(redirect("ASK", "3999 127.0.0.1:7001"), Some(Redirect::Ask(to())));
        assert_eq!(redirect("MOVED", "3999"), None);
        assert_eq!(redirect("TRYAGAIN", "Multiple keys request"), None);
    }

    #[test]
    fn a_script_error_of_an_old_server_is_read_inside() {
        let old = "Error running script (call to f_1): @user_script:3: @user_script: 3: -READONLY You can't write";
        assert_eq!(server_kind("ERR", old), (Kind::ReadOnly, "READONLY"));
        assert_eq!(
            server_kind("ERR", "user_script:9: WRONGTYPE the fencing token key").0,
            Kind::WrongType
        );
        assert_eq!(server_kind("ERR", "a user named READONLY").0, Kind::Server);
        let denied = "The user executing the script can't run this command or subcommand script: 1, on @user_script:2.";
        assert_eq!(server_kind("ERR", denied).0, Kind::NoPermission);
        assert_eq!(server_kind("OOM", "command not allowed").0, Kind::OutOfMemory);
    }
}
