//! A process of its own that locks: killed, frozen and ended as no task can be.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Far above what any answer takes, also on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A process that runs `mutex_worker` (see `tests/src/bin/mutex_worker.rs` for what it understands):
/// one line in for each order, one line out for each answer. It is killed with this value.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    orders: ChildStdin,
    answers: UnboundedReceiver<String>,
}

impl Worker {
    /// Starts it for one lock, and waits until its session is open. `program` is
    /// `env!("CARGO_BIN_EXE_mutex_worker")` in a suite.
    pub async fn start(program: impl AsRef<Path>, url: &str, name: &str, lease: Duration) -> Self {
        let mut child = Command::new(program.as_ref())
            .args([url, name, &lease.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the worker's program");
        let orders = child.stdin.take().expect("a pipe");
        let output = child.stdout.take().expect("a pipe");
        let (sender, answers) = unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                sender.send(line).ok();
            }
        });
        let mut worker = Self { child, orders, answers };
        assert_eq!(worker.hear().await, "ready");
        worker
    }

    /// A program that runs this one with a wall clock that is so far off, by the library that shifts a server's.
    #[must_use]
    pub fn with_wall_clock(program: &str, folder: &Path, name: &str, shift_s: i64) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let (library, offset) =
            (folder.join(format!("{name}.so")), folder.join(format!("{name}.offset")));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/shim/clock.c");
        let built =
            Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
        assert!(built.expect("a C compiler named cc").success());
        std::fs::write(&offset, (shift_s * 1_000_000).to_ne_bytes()).expect("the test's folder");
        let script = format!(
            "#!/bin/sh\nLD_PRELOAD='{}' LEASEHOLD_CLOCK_OFFSET='{}' exec '{program}' \"$@\"\n",
            library.display(),
            offset.display(),
        );
        let wrapped = folder.join(name);
        std::fs::write(&wrapped, script).expect("the test's folder");
        let executable = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(&wrapped, executable).expect("the test's folder");
        wrapped
    }

    /// Gives an order without waiting for its answer. A frozen process finds it when it goes on.
    pub fn say(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("a living worker");
    }

    /// The next answer.
    pub async fn hear(&mut self) -> String {
        let answer = tokio::time::timeout(PATIENCE, self.answers.recv()).await;
        answer.expect("an answer in time").expect("a living worker")
    }

    /// Gives an order and waits for its answer.
    pub async fn ask(&mut self, order: &str) -> String {
        self.say(order);
        self.hear().await
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL: nothing of it runs any more, and the kernel closes its connections.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().expect("a child of our own");
    }

    /// SIGSTOP: it does nothing, and its connections stay open.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("a child of our own")
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a child of our own");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // An error means that it has ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
