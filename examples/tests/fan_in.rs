//! The import in shards as its users run it, on a real server.

mod common;

const FAN_IN: &str = env!("CARGO_BIN_EXE_fan_in");

#[tokio::test]
async fn all_wait_until_every_shard_is_in_though_some_are_imported_twice() {
    let ran = common::run(FAN_IN, &[]).await;
    assert!(ran.success, "{ran:?}");
    let in_order = [
        "an import of 6 000 orders in 12 shards",
        "importer 1 is killed with the shards",
        "is done, again",
        "the last shard comes in late",
        "12 tasks went on, with 6 000 orders there",
        "The latch opened when all shards were in, and not before.",
    ];
    common::assert_in_order(&ran.stdout, &in_order);
    assert_eq!(ran.stderr, "", "nothing moves where there is no terminal");
}

/// The negative control: a shard that is imported twice counts twice.
#[tokio::test]
async fn counted_by_calls_the_latch_opens_too_early_and_it_fails() {
    let ran = common::run(FAN_IN, &["--count-calls"]).await;
    assert!(!ran.success, "{ran:?}");
    assert!(ran.stderr.contains("tasks went on too early, with 5500 of 6000 orders in"), "{ran:?}");
    assert!(!ran.stderr.contains("the sums"), "what was imported is right: {ran:?}");
}

#[tokio::test]
async fn interrupted_it_ends_in_good_order() {
    let ran = common::interrupt_at(FAN_IN, "is killed with the shards").await;
    assert!(!ran.success && ran.stderr.contains("fan_in: interrupted"), "{ran:?}");
}

#[test]
fn it_says_what_it_needs() {
    common::without_a_server(FAN_IN);
}
