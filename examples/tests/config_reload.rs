//! The configuration as its users replace it, on a real server.

mod common;

const CONFIG_RELOAD: &str = env!("CARGO_BIN_EXE_config_reload");

#[tokio::test]
async fn nobody_sees_half_of_a_configuration_though_a_reader_is_killed() {
    let ran = common::run(CONFIG_RELOAD, &[]).await;
    assert!(ran.success, "{ran:?}");
    let in_order = [
        "4 processes with 6 tasks each read a configuration of two files",
        "version  2: the writer waited",
        "reader 1 is killed while it reads",
        "version  6: the writer waited",
        "version 10: the writer waited",
        "reads beside 10 reloads; 0 saw half of one.",
        "Nobody saw half of a configuration, and nobody starved.",
    ];
    common::assert_in_order(&ran.stdout, &in_order);
    assert_eq!(ran.stderr, "", "nothing moves where there is no terminal");
}

/// The negative control: nobody waits for anybody.
#[tokio::test]
async fn without_a_lock_readers_see_half_of_a_configuration_and_it_fails() {
    let ran = common::run(CONFIG_RELOAD, &["--no-lock"]).await;
    assert!(!ran.success, "{ran:?}");
    assert!(ran.stderr.contains(" reads saw half of a configuration"), "{ran:?}");
}

#[tokio::test]
async fn interrupted_it_ends_in_good_order() {
    let ran = common::interrupt_at(CONFIG_RELOAD, "version  3: ").await;
    assert!(!ran.success && ran.stderr.contains("config_reload: interrupted"), "{ran:?}");
}

#[test]
fn it_says_what_it_needs() {
    common::without_a_server(CONFIG_RELOAD);
}
