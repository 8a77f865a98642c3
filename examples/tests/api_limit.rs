//! The fleet within its limit, as its users run it, on a real server.

mod common;

const API_LIMIT: &str = env!("CARGO_BIN_EXE_api_limit");

#[tokio::test]
async fn with_permits_no_call_is_refused_though_a_process_is_killed_and_the_limit_raised() {
    let ran = common::run(API_LIMIT, &[]).await;
    assert!(ran.success, "{ran:?}");
    let in_order = [
        "refuses more than 4 at a time",
        "without permits ",
        "with permits ",
        "process 1 is killed with 2 permits",
        "its permits are back ",
        "the limit is raised ",
        "With permits no call was refused, and as many ran as the server allows.",
    ];
    common::assert_in_order(&ran.stdout, &in_order);
    assert_eq!(ran.stderr, "", "nothing moves where there is no terminal");
}

/// The negative control: more permits than the server allows calls.
#[tokio::test]
async fn with_too_many_permits_calls_are_refused_and_it_fails() {
    let ran = common::run(API_LIMIT, &["--too-many"]).await;
    assert!(!ran.success, "{ran:?}");
    assert!(ran.stderr.contains("calls were refused in spite of permits"), "{ran:?}");
}

#[tokio::test]
async fn interrupted_it_ends_in_good_order() {
    let ran = common::interrupt_at(API_LIMIT, "with permits ").await;
    assert!(!ran.success && ran.stderr.contains("api_limit: interrupted"), "{ran:?}");
}

#[test]
fn it_says_what_it_needs() {
    common::without_a_server(API_LIMIT);
}
