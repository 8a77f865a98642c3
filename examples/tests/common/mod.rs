//! What the suites of the examples share.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use leasehold_tests::{Server, eventually};

/// A program that has ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) success: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs one of the programs beside a server of its own, and looks that it left nothing there.
pub(crate) async fn run(program: &str, arguments: &[&str]) -> Ran {
    let server = Server::start();
    let mut command = Command::new(program);
    let ran = ran(command.args(arguments).env("REDIS_URL", server.url()).output());
    nothing_is_held(&server).await;
    ran
}

/// Interrupts it, as a person at a terminal does, as soon as it has written this.
pub(crate) async fn interrupt_at(program: &str, words: &str) -> Ran {
    use std::io::{BufRead, BufReader, Read};
    let server = Server::start();
    let mut command = Command::new(program);
    let (stdout, stderr) = (Stdio::piped(), Stdio::piped());
    let child = command.env("REDIS_URL", server.url()).stdout(stdout).stderr(stderr).spawn();
    let mut child = child.expect("a program that runs");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut heard = String::new();
    while !heard.contains(words) {
        assert!(output.read_line(&mut heard).expect("UTF-8") > 0, "no {words:?} in {heard}");
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    output.read_to_string(&mut heard).expect("UTF-8");
    let ran = Ran { stdout: heard, ..ran(child.wait_with_output()) };
    // Not in a while, by its leases, but now, by the shutdown of each session.
    assert!(is_quiet(&server).await, "{:?}", server.keys().await);
    ran
}

/// Without a server it says so, and what to do.
pub(crate) fn without_a_server(program: &str) {
    let alone = ran(Command::new(program).env_remove("REDIS_URL").output());
    assert!(!alone.success && alone.stderr.contains("scripts/with-redis"), "{alone:?}");
    let nowhere = ran(Command::new(program).env("REDIS_URL", "redis://127.0.0.1:1/").output());
    assert!(!nowhere.success && nowhere.stderr.contains("redis is out of reach"), "{nowhere:?}");
    let senseless = ran(Command::new(program).arg("--senseless").output());
    assert!(!senseless.success && senseless.stderr.contains("usage: "), "{senseless:?}");
}

fn ran(output: std::io::Result<Output>) -> Ran {
    let Output { status, stdout, stderr } = output.expect("a program that runs");
    let [stdout, stderr] = [stdout, stderr].map(|bytes| String::from_utf8(bytes).expect("UTF-8"));
    Ran { success: status.success(), stdout, stderr }
}

/// I20. What a killed process left ends within its waiter deadline or its lease.
async fn nothing_is_held(server: &Server) {
    let within = Duration::from_secs(20);
    eventually(within, "holds and queues are gone", async || is_quiet(server).await).await;
}

async fn is_quiet(server: &Server) -> bool {
    let mut connection = server.connection().await;
    for key in server.keys().await {
        // The key of a semaphore keeps its limit, and how many permits are used.
        let used = if key.starts_with(b"lh1:semaphore:") && key.ends_with(b"}") {
            let mut look = leasehold::redis::cmd("ZSCORE");
            look.arg(&key).arg("#u").query_async(&mut connection).await.expect("a number")
        } else {
            u64::from(!may_stay(&key))
        };
        if used > 0 {
            return false;
        }
    }
    true
}

/// The memory of tokens, of late cancels and of latches, which outlive their use by design. Not who waits, nor holds.
fn may_stay(key: &[u8]) -> bool {
    let is_of = |suffix: &[u8]| key.ends_with(suffix);
    is_of(b":token") || is_of(b":gone") || (key.starts_with(b"lh1:latch:") && !is_of(b":waiters"))
}

/// Each of these stands in the text, after the one before.
pub(crate) fn assert_in_order(text: &str, words: &[&str]) {
    let mut rest = text;
    for words in words {
        let at = rest.find(words);
        rest = &rest[at.unwrap_or_else(|| panic!("no {words:?} in its place: {text}"))..];
    }
}
