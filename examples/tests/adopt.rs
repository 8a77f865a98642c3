//! A job that changes processes, as its users run it, on a real server.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leasehold::{Mutex, Options, Session};
use leasehold_tests::{Server, eventually};

fn adopt(server: &Server, words: &[&str]) -> (bool, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adopt"));
    let output = command.args(words).env("REDIS_URL", server.url()).output();
    let output = output.expect("a program that runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.success(), text(output.stdout), text(output.stderr))
}

fn job_in(folder: &Path) -> String {
    folder.join("job").to_str().expect("a temporary folder").to_owned()
}

fn last_word(line: &str) -> u64 {
    line.split(' ').next_back().expect("a word").parse().expect("a token")
}

#[tokio::test]
async fn another_process_goes_on_under_the_same_token() {
    let server = Server::start();
    let (success, stdout, stderr) = adopt(&server, &[]);
    assert!(success, "{stdout}\n{stderr}");
    let lines: Vec<_> = stdout.lines().collect();
    let [started, between, resumed] = lines.as_slice() else { panic!("{stdout}") };
    assert!(started.contains(": counted to order 3000: "), "{stdout}");
    assert!(between.starts_with("in between: busy, held by monthly report on "), "{stdout}");
    assert!(resumed.contains(": adopted and counted on to order 6000: "), "{stdout}");
    assert_eq!(last_word(started), last_word(resumed), "{stdout}");
    let process = |line: &str| line.split(':').next().map(str::to_owned);
    assert_ne!(process(started), process(resumed), "{stdout}");
    // I20: nothing but the token, and for a minute the mark of what was adopted.
    let stays = |key: &Vec<u8>| key.ends_with(b":token") || key.ends_with(b":gone");
    let within = Duration::from_secs(5);
    eventually(within, "no hold is left", async || server.keys().await.iter().all(stays)).await;
}

/// Adopting never takes: where the hold has ended the job is not gone on with.
#[tokio::test]
async fn a_process_that_comes_too_late_is_told_so() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let file = job_in(folder.path());
    let (success, stdout, stderr) = adopt(&server, &["start", &file]);
    assert!(success, "{stdout}\n{stderr}");
    let session = Session::connect(&server.url()).await.unwrap();
    let mutex = Mutex::new(&session, "monthly-report", Options::default()).unwrap();
    assert!(mutex.force_release().await.unwrap().is_some(), "it was given away, not released");
    let (success, stdout, stderr) = adopt(&server, &["resume", &file]);
    assert!(!success && stdout.is_empty(), "{stdout}");
    assert!(stderr.contains("too late: the hold on monthly-report was lost"), "{stderr}");
    assert!(!mutex.is_locked().await.unwrap());
}

/// The owner in the file is a capability.
#[test]
fn the_file_is_for_its_user_only() {
    use std::os::unix::fs::PermissionsExt;
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let file = job_in(folder.path());
    assert!(adopt(&server, &["start", &file]).0);
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    let server = Server::start();
    for words in [&["start"][..], &["end", "job"], &["resume", "a", "b"]] {
        let (success, _, stderr) = adopt(&server, words);
        assert!(!success && stderr.contains("usage: adopt"), "{words:?}: {stderr}");
    }
}
