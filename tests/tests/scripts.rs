//! `scripts/with-redis` and `scripts/servers` do what their headers say.

use std::fs::Permissions;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leasehold_tests::rig::Watch;
use leasehold_tests::{Server, eventually};

/// Far above what any step takes, also on a loaded machine.
const SOON: Duration = Duration::from_secs(10);

const PRINT_URL: &str = "echo \"$REDIS_URL\"";

/// A command of `scripts/with-redis`, without the variables it looks at.
fn with_redis(arguments: &[&str]) -> Command {
    script("with-redis", arguments)
}

/// A command of `scripts/servers` whose private cache is in this folder, and which finds these programs before those of
/// the system.
fn servers(folder: &Path, programs: &[(&str, &str)], arguments: &[&str]) -> Command {
    for (name, body) in programs {
        write_program(&folder.join("bin").join(name), body);
    }
    let path = std::env::var("PATH").expect("a path");
    let mut command = script("servers", arguments);
    command.env("PATH", format!("{}:{path}", folder.join("bin").display()));
    command.env("XDG_CACHE_HOME", folder).stderr(Stdio::piped());
    command
}

fn script(name: &str, arguments: &[&str]) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts").join(name);
    let mut command = Command::new(script);
    command.args(arguments).env_remove("REDIS_URL").stdin(Stdio::null());
    command
}

fn write_program(file: &Path, body: &str) {
    std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder of our own");
    std::fs::write(file, format!("#!/bin/sh\n{body}\n")).expect("a folder of our own");
    std::fs::set_permissions(file, Permissions::from_mode(0o755)).expect("a file of our own");
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

/// What was fetched before is used as it is; the command's status is kept, and a running server is not looked at.
#[test]
fn a_cached_server_runs_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let server = folder.path().join("leasehold/valkey-9");
    write_program(&server, "echo Valkey server v=9.1.2 sha=0");
    let print = "echo $REDIS_SERVER_BIN ${REDIS_URL-none}; exit 7";
    let mut command = servers(folder.path(), &[], &["valkey-9", "--", "sh", "-c", print]);
    let printed = output(command.env("REDIS_URL", "redis://127.0.0.1:1/"));
    assert_eq!(printed, (format!("{} none", server.display()), Some(7)));
}

/// 69 says so and why, whatever way the server comes; another version counts for nothing, and a try leaves nothing.
#[test]
fn a_server_that_cannot_be_had_is_told() {
    for name in ["valkey-8", "redis-6.2"] {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("leasehold");
        write_program(&cache.join(name), "echo Valkey server v=7.9.9 sha=0");
        let fails = "echo no such thing >&2; exit 1";
        let programs = [("apt-get", fails), ("python3", fails)];
        let mut command = servers(folder.path(), &programs, &[name, "--", "echo", "run"]);
        for _ in 0..2 {
            let output = command.output().unwrap();
            let (said, message) = (output.stdout, String::from_utf8(output.stderr).unwrap());
            assert_eq!((output.status.code(), said), (Some(69), vec![]), "{message}");
            let last = message.lines().last().unwrap_or_default();
            assert!(last.starts_with(&format!("servers: {name} cannot be had here")), "{message}");
            assert_eq!(std::fs::read_dir(&cache).unwrap().count(), 1);
        }
    }
}

#[test]
fn a_server_without_a_name_or_a_command_is_a_usage_error() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [&["redis-1", "--", "true"][..], &["valkey-8"], &["valkey-8", "true"], &[]] {
        let code = servers(folder.path(), &[], arguments).output().unwrap().status.code();
        assert_eq!(code, Some(64), "{arguments:?}");
    }
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
    let begin = Watch::start();
    assert_eq!(script.wait().unwrap().code(), Some(128 + 15));
    assert!(begin.awake() < SOON, "it waited for the command instead of ending it");
    assert!(TcpStream::connect(addr(url.trim())).is_err(), "{url} still answers");
}

fn terminate(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a child of our own");
}
