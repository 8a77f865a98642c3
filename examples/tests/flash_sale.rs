//! The examples as their users run them, on a real server.

use std::process::{Command, Output};

use leasehold_tests::Server;

fn output(command: &mut Command) -> (bool, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("a program that runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (status.success(), text(stdout), text(stderr))
}

fn flash_sale() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flash_sale"));
    command.env_remove("REDIS_URL");
    command
}

/// I20: no hold, no waiter and no deadline outlives the sessions. What stays for a while is the memory of tokens, and of
/// ids whose acquire might still have been on its way.
async fn nothing_is_held(server: &Server) {
    let left = server.keys().await;
    let keys: Vec<_> = left.iter().map(|key| String::from_utf8_lossy(key)).collect();
    assert!(keys.iter().any(|key| key.ends_with(":token")), "{keys:?}");
    assert!(keys.iter().all(|key| key.ends_with(":token") || key.ends_with(":gone")), "{keys:?}");
}

#[tokio::test]
async fn a_small_flash_sale_shows_what_it_should() {
    let server = Server::start();
    let (success, stdout, stderr) =
        output(flash_sale().args(["--orders", "300"]).env("REDIS_URL", server.url()));
    assert!(success, "{stdout}\n{stderr}");
    let row = |run: &str| -> Vec<&str> {
        let line = stdout.lines().rfind(|line| line.starts_with(run)).expect("a row of the table");
        line[run.len()..].split_whitespace().collect()
    };
    let [orders, sold, refused, oversold] = [0, 1, 2, 3];
    let number = |run, column: usize| row(run)[column].parse::<i64>().expect("a number");
    let runs = ["no lock  ", "mutex  ", "mutex, frozen worker"];
    for run in runs {
        assert_eq!(number(run, orders), 300, "{stdout}");
        assert_eq!(number(run, sold) + number(run, refused), 300, "{stdout}");
        assert_eq!(number(run, oversold) > 0, run == runs[0], "{stdout}");
    }
    let stale_writes = 4;
    assert_eq!(number(runs[1], stale_writes), 0, "{stdout}");
    assert!(number(runs[2], stale_writes) > 0, "{stdout}");
    assert_eq!(stderr, "", "no bar where there is no terminal");
    nothing_is_held(&server).await;
}

#[test]
fn without_a_server_it_says_what_to_do() {
    let (success, stdout, stderr) = output(&mut flash_sale());
    assert!(!success && stdout.is_empty() && stderr.contains("scripts/demo"), "{stderr}");
    let (success, _, stderr) = output(flash_sale().env("REDIS_URL", "redis://127.0.0.1:1/"));
    assert!(!success && stderr.contains("redis is out of reach"), "{stderr}");
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    for arguments in [["--orders", "99"], ["--orders", "6001"], ["--orders", "x"], ["-n", "300"]] {
        let (success, _, stderr) = output(flash_sale().args(arguments));
        assert!(!success && stderr.contains("usage: flash_sale"), "{arguments:?}: {stderr}");
    }
}

#[tokio::test]
async fn the_quick_start_runs() {
    let server = Server::start();
    let mut quickstart = Command::new(env!("CARGO_BIN_EXE_quickstart"));
    let (success, stdout, stderr) = output(quickstart.env("REDIS_URL", server.url()));
    assert!(success, "{stderr}");
    assert!(stdout.starts_with("invoice 42 sent under token "), "{stdout}");
    nothing_is_held(&server).await;
}
