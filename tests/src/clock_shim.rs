//! The wall clock of a server, in the hands of a test.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

/// From 9.1 on Valkey asks for the wall clock once a millisecond and counts on in between.
const VALKEY_LOOKS_EVERY: Duration = Duration::from_millis(2);

/// Shifts the wall clock of one [`Server`](crate::Server), as an operator or a bad NTP step would:
/// a preloaded library (`tests/shim/clock.c`) adds an offset. The monotonic clock stays true.
///
/// Shifts add up and act at once on the next time that the server reads.
#[derive(Debug)]
pub struct ServerClock {
    slow: bool,
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
        if self.slow {
            std::thread::sleep(VALKEY_LOOKS_EVERY);
        }
    }

    /// Compiles the library into `folder`, for this server. Some 50 ms; a copy a server needs no
    /// cleaning up.
    pub(crate) fn build_in(folder: &Path, server: &Path) -> Self {
        let preload = folder.join("clock.so");
        compile(&preload);
        let offset_path = folder.join("clock_offset");
        let offset_file = File::create(&offset_path).expect("a file of our own");
        let (slow, offset_micros) = (is_valkey(server), Mutex::new(0));
        let clock = Self { slow, preload, offset_path, offset_file, offset_micros };
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

fn is_valkey(server: &Path) -> bool {
    let said = Command::new(server).arg("--version").output().expect("a server");
    String::from_utf8_lossy(&said.stdout).starts_with("Valkey")
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
