//! The long job as its users run it, on a real server.

use std::process::Command;
use std::time::Duration;

use leasehold_tests::{Server, eventually};

fn tokens(stdout: &str) -> Vec<u64> {
    let held = stdout.lines().filter_map(|line| line.trim().strip_prefix("held under token "));
    let tokens = held.filter_map(|rest| rest.split(',').next());
    tokens.map(|token| token.parse().expect("a token")).collect()
}

#[tokio::test]
async fn it_holds_beyond_its_lease_and_goes_on_after_a_loss() {
    let server = Server::start();
    let mut job = Command::new(env!("CARGO_BIN_EXE_long_job"));
    let output = job.env("REDIS_URL", server.url()).output().expect("a program that runs");
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("UTF-8"));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    let (first, second) = stdout.split_once("second run").expect("two runs");
    // One hold in the first run and two in the second, each with a larger token (I5). A machine that stands still for
    // longer than the lease costs a further hold, which the job is made for.
    let (undisturbed, disturbed) = (tokens(first), tokens(second));
    assert!(!undisturbed.is_empty() && disturbed.len() >= 2, "{stdout}");
    assert!([undisturbed, disturbed].concat().is_sorted_by(|one, next| one < next), "{stdout}");
    assert!(first.contains("event: nightly-sum is held for"), "{stdout}");
    // The job and the operator hear of it at the same time: either may say so first.
    assert!(second.contains("operator: ended the hold of nightly sum on "), "{stdout}");
    let in_order = [
        "from page 0 on",
        "stopped: the hold on nightly-sum was lost: it was released by force",
        "done: held for",
        "cd-01",
        "47 products, ",
        "both runs came to the same sums",
    ];
    let mut rest = second;
    for line in in_order {
        let at = rest.find(line);
        rest = &rest[at.unwrap_or_else(|| panic!("no {line:?} in its place: {stdout}"))..];
    }
    assert!(second.contains("event: nightly-sum was lost: it was released by force"), "{stdout}");
    nothing_but_tokens_and_marks_is_left(&server).await;
}

/// I20: fence memory, and for a minute the mark that says to a holder that its hold was ended by force.
async fn nothing_but_tokens_and_marks_is_left(server: &Server) {
    let stays = |key: &Vec<u8>| key.ends_with(b":token") || key.ends_with(b":gone");
    let within = Duration::from_secs(5);
    eventually(within, "holds and queues are gone", async || server.keys().await.iter().all(stays))
        .await;
}

#[test]
fn without_a_server_it_says_so() {
    let mut job = Command::new(env!("CARGO_BIN_EXE_long_job"));
    let output = job.env_remove("REDIS_URL").output().expect("a program that runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("REDIS_URL is not set"), "{stderr}");
}
