//! The job queue as its users run it, on a real server.

mod common;

const JOB_QUEUE: &str = env!("CARGO_BIN_EXE_job_queue");

#[tokio::test]
async fn jobs_are_done_once_and_in_order_though_a_worker_is_killed() {
    let ran = common::run(JOB_QUEUE, &[]).await;
    assert!(ran.success, "{ran:?}");
    let in_order = [
        "84 jobs of 6 accounts",
        "begins after ", // where a job stood while it waited
        "worker 1 is killed: it held cd-01",
        "of its places in the queues were skipped when their turn came",
        "All jobs were done once, and in the order of their account.",
    ];
    common::assert_in_order(&ran.stdout, &in_order);
    assert_eq!(ran.stderr, "", "nothing moves where there is no terminal");
}

/// The negative control: a lock without a queue excludes as well, but whoever asks last may be the next.
#[tokio::test]
async fn without_a_queue_jobs_overtake_each_other_and_it_fails() {
    let ran = common::run(JOB_QUEUE, &["--unordered"]).await;
    assert!(!ran.success, "{ran:?}");
    assert!(ran.stderr.contains(": overtaken by one of worker "), "{ran:?}");
    assert!(!ran.stderr.contains("booked in this order"), "it did exclude: {ran:?}");
    assert!(!ran.stdout.contains("All jobs were done"), "{ran:?}");
}

#[tokio::test]
async fn interrupted_it_ends_in_good_order() {
    let ran = common::interrupt_at(JOB_QUEUE, "cd-01 job  3: worker 3 begins").await;
    assert!(!ran.success && ran.stderr.contains("job_queue: interrupted"), "{ran:?}");
}

#[test]
fn it_says_what_it_needs() {
    common::without_a_server(JOB_QUEUE);
}
