//! What a worker tells its parent: lines on its standard output. The parent answers with empty lines, each of which means
//! "go on".

use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;
use std::time::Duration;

use crate::Failure;

/// One line of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// It has connected, and sells when it is told to go on.
    Ready,
    /// It stands between the read and the write of a product, and writes when it is told to go on.
    Inside {
        /// The product.
        product: String,
        /// The fencing token of its hold.
        token: i64,
    },
    /// The database refused its write, since somebody with a larger token was there.
    StaleWrite,
    /// A hold had ended before its release, or nobody knows.
    HoldLost,
    /// An order is done with.
    Order {
        /// Sold, or refused because too little was left.
        sold: bool,
        /// How long it waited for the lock.
        waited: Duration,
    },
}

impl Message {
    /// Tells it to the parent.
    ///
    /// # Errors
    /// The parent no longer listens.
    pub fn send(&self) -> io::Result<()> {
        writeln!(io::stdout().lock(), "{self}")
    }
}

/// Waits, blocking, until the parent says "go on".
///
/// # Errors
/// The parent is gone.
pub fn wait_to_go_on() -> Result<(), Failure> {
    match io::stdin().read_line(&mut String::new())? {
        0 => Err("the parent of this worker is gone".into()),
        _ => Ok(()),
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => write!(f, "ready"),
            Self::Inside { product, token } => write!(f, "inside {product} {token}"),
            Self::StaleWrite => write!(f, "stale-write"),
            Self::HoldLost => write!(f, "hold-lost"),
            Self::Order { sold: true, waited } => write!(f, "sold {}", waited.as_micros()),
            Self::Order { sold: false, waited } => write!(f, "refused {}", waited.as_micros()),
        }
    }
}

impl FromStr for Message {
    type Err = Failure;

    fn from_str(line: &str) -> Result<Self, Failure> {
        let words: Vec<_> = line.split(' ').collect();
        Ok(match words.as_slice() {
            ["ready"] => Self::Ready,
            ["inside", product, token] => {
                Self::Inside { product: (*product).to_owned(), token: token.parse()? }
            }
            ["stale-write"] => Self::StaleWrite,
            ["hold-lost"] => Self::HoldLost,
            [outcome @ ("sold" | "refused"), us] => {
                Self::Order { sold: *outcome == "sold", waited: Duration::from_micros(us.parse()?) }
            }
            _ => return Err(format!("a worker said: {line}").into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let waited = Duration::from_micros(1234);
        let all = [
            Message::Ready,
            Message::Inside { product: "cd-01".to_owned(), token: 1_764_000_000_000_000 },
            Message::StaleWrite,
            Message::HoldLost,
            Message::Order { sold: true, waited },
            Message::Order { sold: false, waited },
        ];
        for message in all {
            assert_eq!(message.to_string().parse::<Message>().unwrap(), message);
        }
    }

    #[test]
    fn other_lines_are_errors() {
        for line in ["", "sold", "sold x", "inside cd-01", "panicked"] {
            assert!(line.parse::<Message>().is_err(), "{line}");
        }
    }
}
