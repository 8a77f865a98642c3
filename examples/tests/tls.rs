//! A lock over TLS, as its users run it; the program starts a server of its own.

use std::process::{Command, Output};

fn tls(words: &[&str]) -> (bool, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tls"));
    let output = command.args(words).env_remove("REDIS_URL").output();
    let Output { status, stdout, stderr } = output.expect("a program that runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (status.success(), text(stdout), text(stderr))
}

#[test]
fn a_lock_is_handed_over_by_tls_and_strangers_are_refused() {
    let (success, stdout, stderr) = tls(&[]);
    assert!(success, "{stdout}\n{stderr}");
    let told = [
        "speaks TLS and nothing else",
        "the first holds it under token ",
        "the second got it under token ",
        ", by 1 push",
        "refused, whoever trusts another authority: ",
        "no trust between redis and this side (TLS): invalid peer certificate",
        "refused, whoever speaks no TLS: ",
        "does that port want TLS?",
    ];
    let mut rest = &*stdout;
    for words in told {
        let at = rest.find(words);
        rest = &rest[at.unwrap_or_else(|| panic!("no {words:?} in its place: {stdout}"))..];
    }
}

/// The control: the same program, with the root of another authority.
#[test]
fn with_the_root_of_another_authority_nothing_works() {
    let (success, stdout, stderr) = tls(&["--other-authority"]);
    assert!(!success && !stdout.contains("holds it"), "{stdout}\n{stderr}");
    assert!(stderr.contains("invalid peer certificate"), "{stderr}");
    assert!(!stderr.contains("secret"), "I19: {stderr}");
    let (success, _, stderr) = tls(&["--senseless"]);
    assert!(!success && stderr.contains("usage: tls"), "{stderr}");
}
