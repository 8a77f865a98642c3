//! The wall clock of a server, in the hands of a test.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

/// Shifts the wall clock of one [`Server`](crate::Server), as an operator or a bad NTP step would:
/// a preloaded library (`tests/shim/clock.c`) adds an offset. The monotonic clock stays true.
///
/// Shifts add up and act at once on the next time that the server reads.
#[derive(Debug)]
pub struct ServerClock {
    preload: PathBuf,
    offset_path: PathBuf,
    offset_file: File,
    offset_micros: Mutex<i64>,
}

impl ServerClock {
    /// Moves the server's clock forward.
    pub fn forward(&self, by: Duration) {
        self.shift(micros(by));
    }

    /// Moves the server's clock back.
    pub fn back(&self, by: Duration) {
        self.shift(-micros(by));
    }

    fn shift(&self, micros: i64) {
        let mut offset = self.offset_micros.lock().expect("no panic inside");
        *offset += micros;
        self.offset_file.write_all_at(&offset.to_ne_bytes(), 0).expect("a file of our own");
    }

    /// Compiles the library into `folder`. Some 50 ms; a copy a server needs no cleaning up.
    pub(crate) fn build_in(folder: &Path) -> Self {
        let preload = folder.join("clock.so");
        compile(&preload);
        let offset_path = folder.join("clock_offset");
        let offset_file = File::create(&offset_path).expect("a file of our own");
        let clock = Self { preload, offset_path, offset_file, offset_micros: Mutex::new(0) };
        // The library maps the file when the server starts: it must have its length by then.
        clock.shift(0);
        clock
    }

    /// What the server's process needs in its environment.
    pub(crate) fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![
            ("LD_PRELOAD", self.preload.clone()),
            ("LEASEHOLD_CLOCK_OFFSET", self.offset_path.clone()),
        ]
    }
}

fn compile(preload: &Path) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/shim/clock.c");
    let compiler = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(preload)
        .arg(source)
        .output()
        .expect("a C compiler named cc (run scripts/test, or apt-get install gcc)");
    assert!(compiler.status.success(), "{}", String::from_utf8_lossy(&compiler.stderr));
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).expect("a shift of less than 292 000 years")
}
