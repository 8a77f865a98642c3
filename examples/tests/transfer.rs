//! Money that is moved, as its users run it, on a real server.

mod common;

const TRANSFER: &str = env!("CARGO_BIN_EXE_transfer");

/// The number at the end of the line that begins with this.
fn number(stdout: &str, row: &str) -> u32 {
    let line = stdout.lines().find(|line| line.starts_with(row)).expect(row);
    line.split(' ').next_back().and_then(|word| word.parse().ok()).expect(row)
}

#[tokio::test]
async fn no_transfer_waits_in_a_circle_and_a_stale_write_is_refused() {
    let ran = common::run(TRANSFER, &[]).await;
    assert!(ran.success, "{ran:?}");
    let in_order = [
        "6 accounts, 4 processes with 4 tasks each",
        "600 transfers, for which both accounts are taken together",
        "worker 0 is frozen between its read and its write",
        "others got its accounts; after ",
        "transfers/s",
        "undisturbed            600",
        "a worker frozen        121",
        "No transfer waited in a circle, and no money was made or lost.",
    ];
    common::assert_in_order(&ran.stdout, &in_order);
    assert_eq!(number(&ran.stdout, "dead-locks"), 0, "{ran:?}");
    assert!(number(&ran.stdout, "stale writes refused") > 0, "{ran:?}");
    assert_eq!(number(&ran.stdout, "sum before"), 600, "{ran:?}");
    assert_eq!(number(&ran.stdout, "sum after"), 600, "{ran:?}");
    assert_eq!(ran.stderr, "", "nothing moves where there is no terminal");
}

/// The negative control of the sum: nobody waits for anybody.
#[tokio::test]
async fn without_locks_money_is_made_or_lost_and_it_fails() {
    let ran = common::run(TRANSFER, &["--no-lock"]).await;
    assert!(!ran.success, "{ran:?}");
    assert!(ran.stderr.contains("the sum was 600 and is "), "{ran:?}");
    assert_ne!(number(&ran.stdout, "sum after"), 600, "{ran:?}");
}

/// The negative control of the order: each lock is right, and the sum is too, but transfers wait for each other.
#[tokio::test]
async fn one_lock_after_the_other_they_wait_in_a_circle_and_it_fails() {
    let ran = common::run(TRANSFER, &["--one-by-one"]).await;
    assert!(!ran.success, "{ran:?}");
    assert!(ran.stderr.contains(" transfers were dead-locked"), "{ran:?}");
    common::assert_in_order(&ran.stdout, &[" gave up: account:", " was held by "]);
    assert!(number(&ran.stdout, "dead-locks") > 0, "{ran:?}");
    assert_eq!(number(&ran.stdout, "sum after"), 600, "{ran:?}");
}

#[tokio::test]
async fn interrupted_it_ends_in_good_order() {
    let ran = common::interrupt_at(TRANSFER, "600 transfers, for which").await;
    assert!(!ran.success && ran.stderr.contains("transfer: interrupted"), "{ran:?}");
}

#[test]
fn it_says_what_it_needs() {
    common::without_a_server(TRANSFER);
}
