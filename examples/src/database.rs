//! How the examples open SQLite.

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;

/// How long a statement waits for the writer of another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(20);

/// A connection to this file, which other processes may write at the same time.
///
/// # Errors
/// The database failed.
pub fn open(file: &Path) -> Result<Connection, rusqlite::Error> {
    let connection = Connection::open(file)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // The database of an example need not survive a power cut.
    connection.pragma_update(None, "synchronous", "OFF")?;
    Ok(connection)
}
