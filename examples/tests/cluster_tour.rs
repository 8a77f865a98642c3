//! The tour of a cluster as its users make it. The program starts its servers, and none may outlive it.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leasehold_tests::eventually;
use rustix::process::{Pid, Signal, kill_process};

/// What a loaded machine may take.
const SOON: Duration = Duration::from_secs(20);

#[derive(Debug)]
struct Ran {
    success: bool,
    stdout: String,
    stderr: String,
}

fn cluster_tour(arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cluster_tour"));
    let (stdout, stderr) = (Stdio::piped(), Stdio::piped());
    // It has no use for a server that stands already.
    let command = command.args(arguments).env("REDIS_URL", "redis://127.0.0.1:1/");
    command.stdout(stdout).stderr(stderr).spawn().expect("a program that runs")
}

/// Waits for its end, and looks that its three servers have ended too.
async fn end(mut tour: Child) -> Ran {
    let [mut stdout, mut stderr] = [String::new(), String::new()];
    tour.stdout.take().expect("a pipe").read_to_string(&mut stdout).expect("UTF-8");
    tour.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("UTF-8");
    let success = tour.wait().expect("a child of ours").success();
    no_server_stays(&stdout).await;
    Ran { success, stdout, stderr }
}

/// Until it has written this; answers all that it wrote.
fn read_to(tour: &mut Child, words: &str) -> String {
    let mut output = BufReader::new(tour.stdout.take().expect("a pipe"));
    let mut heard = String::new();
    while !heard.contains(words) {
        assert!(output.read_line(&mut heard).expect("UTF-8") > 0, "no {words:?} in {heard}");
    }
    heard
}

async fn no_server_stays(stdout: &str) {
    let ports = stdout.lines().filter_map(|line| {
        let (_, rest) = line.split_once(" at 127.0.0.1:")?;
        rest.split(' ').next()?.parse::<u16>().ok()
    });
    let ports: Vec<_> = ports.collect();
    assert_eq!(ports.len(), 3, "{stdout}");
    let gone =
        async || ports.iter().all(|port| TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).is_err());
    eventually(SOON, "the servers have ended", gone).await;
}

#[tokio::test]
async fn each_primitive_is_at_the_node_of_its_slot_and_is_handed_over_from_there() {
    let ran = end(cluster_tour(&[])).await;
    assert!(ran.success, "{ran:?}");
    let stops = [
        ("\nmutex\n", "lh1:mutex:{order%3A42}\n", "held by 1 script, under "),
        ("\nfair lock\n", "lh1:fair:{account%3A7}\n", "held by 1 script, under "),
        ("\nread-write lock\n", "lh1:rwlock:{config}", "held by 1 script, under "),
        ("\nsemaphore\n", "lh1:semaphore:{api-calls}\n", "held by 1 script\n"),
        ("\nlatch\n", "lh1:latch:{import}\n", "armed by 1 script; "),
        ("\nmulti-lock, one group\n", "lh1:mutex:{bank}=account%3A2", "held by 1 script, under "),
        ("\nmulti-lock, two slots\n", "lh1:mutex:{account%3A2}", "held by 2 scripts, under "),
    ];
    let mut rest = ran.stdout.as_str();
    for (stop, key, held) in stops {
        for words in [stop, key, held] {
            let at = rest.find(words);
            rest = &rest[at.unwrap_or_else(|| panic!("no {words:?} in its place: {ran:?}"))..];
        }
    }
    for words in ["quorum lock: not here", "what stays", "Each was at the node of its slot"] {
        assert!(rest.contains(words), "no {words:?}: {ran:?}");
    }
    assert_eq!(slots_of(&ran.stdout, "{bank}=").len(), 1, "one slot: {ran:?}");
    assert_eq!(slots_of(&ran.stdout, "{account%3A").len(), 3, "a slot a name: {ran:?}");
    assert_eq!(ran.stderr, "", "nothing moves where there is no terminal");
}

/// The slots of the keys that contain this.
fn slots_of(stdout: &str, part: &str) -> Vec<u16> {
    let lines = stdout.lines().filter(|line| line.contains(part));
    let slots =
        lines.filter_map(|line| line.split_once("slot ")?.1.split_once(':')?.0.trim().parse().ok());
    let mut slots: Vec<_> = slots.collect();
    slots.sort_unstable();
    slots.dedup();
    slots
}

/// The negative control: a session that takes one node for the whole cluster.
#[tokio::test]
async fn a_session_at_one_node_is_refused_the_names_of_the_others_and_it_fails() {
    let ran = end(cluster_tour(&["--one-node"])).await;
    assert!(!ran.success, "{ran:?}");
    for words in [
        "order:1      refused, kind Server: redis answered an error: MOVED 10090 127.0.0.1:",
        "order:3      held: its slot happens to be here",
        "two accounts refused, kind CrossSlot: the keys are in several cluster slots",
    ] {
        assert!(ran.stdout.contains(words), "no {words:?}: {ran:?}");
    }
    assert!(ran.stderr.contains("5 of 6 names cannot be locked"), "{ran:?}");
}

/// While the cluster is formed, which takes seconds: the tour itself is over sooner than a signal arrives.
#[tokio::test]
async fn interrupted_it_ends_in_good_order() {
    let mut tour = cluster_tour(&[]);
    let heard = read_to(&mut tour, "node 3 at ");
    kill_process(Pid::from_child(&tour), Signal::INT).expect("it runs");
    let mut stderr = String::new();
    tour.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("UTF-8");
    assert!(!tour.wait().expect("a child of ours").success());
    assert_eq!(stderr, "cluster_tour: interrupted\n");
    no_server_stays(&heard).await;
}

#[tokio::test]
async fn killed_it_leaves_no_server() {
    let mut tour = cluster_tour(&[]);
    let heard = read_to(&mut tour, "node 3 at ");
    tour.kill().expect("it runs");
    tour.wait().expect("a child of ours");
    no_server_stays(&heard).await;
}

#[test]
fn it_says_what_it_needs() {
    let run = |command: &mut Command| {
        let output = command.output().expect("a program that runs");
        (output.status.success(), String::from_utf8(output.stderr).expect("UTF-8"))
    };
    let tour = || Command::new(env!("CARGO_BIN_EXE_cluster_tour"));
    let (success, stderr) = run(tour().env("REDIS_SERVER_BIN", "no-such-server"));
    assert!(!success && stderr.contains("scripts/with-redis --find"), "{stderr}");
    let (success, stderr) = run(tour().env("REDIS_SERVER_BIN", "false"));
    assert!(!success && stderr.contains("a Redis server does not start"), "{stderr}");
    let (success, stderr) = run(tour().arg("--senseless"));
    assert!(!success && stderr.contains("usage: cluster_tour"), "{stderr}");
}
