//! `scripts/with-redis` does what its header says.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use leasehold_tests::{Server, eventually};

/// Far above what any step takes, also on a loaded machine.
const SOON: Duration = Duration::from_secs(10);

const PRINT_URL: &str = "echo \"$REDIS_URL\"";

/// A command of `scripts/with-redis`, without the variables it looks at.
fn with_redis(arguments: &[&str]) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/with-redis");
    let mut command = Command::new(script);
    command.args(arguments).env_remove("REDIS_URL").stdin(Stdio::null());
    command
}

/// What the command prints, and its exit status.
fn output(command: &mut Command) -> (String, Option<i32>) {
    let output = command.stderr(Stdio::inherit()).output().expect("the script runs");
    let text = String::from_utf8(output.stdout).expect("text");
    (text.trim().to_owned(), output.status.code())
}

fn addr(url: &str) -> &str {
    url.trim_start_matches("redis://").trim_end_matches('/')
}

#[test]
fn exit_status_of_the_command_is_kept() {
    for status in [0, 1, 7, 255] {
        assert_eq!(
            output(&mut with_redis(&["sh", "-c", &format!("exit {status}")])).1,
            Some(status)
        );
    }
    assert_eq!(output(&mut with_redis(&["sh", "-c", "kill -KILL $$"])).1, Some(128 + 9));
}

#[test]
fn server_answers_during_the_command_and_is_gone_after_it() {
    let ping = "exec 3<>/dev/tcp/$(echo \"$REDIS_URL\" | cut -d/ -f3 | tr : /); \
                echo PING >&3; read -r answer <&3; echo \"$REDIS_URL $answer\"";
    let (text, status) = output(&mut with_redis(&["bash", "-c", ping]));
    assert_eq!(status, Some(0));
    let (url, answer) = text.split_once(' ').unwrap();
    assert_eq!(answer.trim(), "+PONG");
    assert!(TcpStream::connect(addr(url)).is_err(), "{url} still answers");
}

#[test]
fn given_url_is_used_and_no_server_started() {
    let server = Server::start();
    let mut command = with_redis(&["sh", "-c", PRINT_URL]);
    // A binary that cannot run: nothing asks for it.
    command.env("REDIS_URL", server.url()).env("REDIS_SERVER_BIN", "/nonexistent");
    assert_eq!(output(&mut command), (server.url(), Some(0)));
}

#[test]
fn find_starts_no_server() {
    let print = "echo \"${REDIS_URL-none}\"; \"$REDIS_SERVER_BIN\" --version";
    let (text, status) = output(&mut with_redis(&["--find", "sh", "-c", print]));
    let (url, version) = text.split_once('\n').unwrap();
    assert_eq!((url, status), ("none", Some(0)));
    assert!(version.contains("server v="), "{version}");
}

#[test]
fn unusable_binary_is_named() {
    let mut command = with_redis(&["true"]);
    let output = command.env("REDIS_SERVER_BIN", "/nonexistent").output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(69));
    assert!(message.contains("REDIS_SERVER_BIN=/nonexistent"), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
}

#[tokio::test]
async fn signal_ends_command_and_server() {
    let folder = tempfile::tempdir().unwrap();
    let url_file = folder.path().join("url");
    let wait = format!("{PRINT_URL} >'{}'; exec sleep 60", url_file.display());
    let mut script = with_redis(&["bash", "-c", &wait]).spawn().unwrap();
    let url = async || std::fs::read_to_string(&url_file).is_ok_and(|url| url.ends_with("/\n"));
    eventually(SOON, "the command runs", url).await;
    let url = std::fs::read_to_string(&url_file).unwrap();
    assert!(TcpStream::connect(addr(url.trim())).is_ok());

    terminate(&script);
    let begin = Instant::now();
    assert_eq!(script.wait().unwrap().code(), Some(128 + 15));
    assert!(begin.elapsed() < SOON, "it waited for the command instead of ending it");
    assert!(TcpStream::connect(addr(url.trim())).is_err(), "{url} still answers");
}

fn terminate(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a child of our own");
}
