//! Running a scenario, and telling its failures from the machine's.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as Lock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;

use super::any::{Kind, Topology, here, mean};
use super::{Holdable, MS, Rig, Site};

/// How often a scenario may meet a machine that stands still.
const MOST_RUNS: u32 = 4;

/// Shorter than anything that a scenario's margins do not cover: leases are 500 ms and more, renewed at
/// a third, and hand-overs have [`MACHINE`](super::MACHINE).
const STANDSTILL: Duration = Duration::from_millis(300);

/// Runs a scenario on a site of its own, and fails as it does; afterwards nothing of it may be left.
///
/// A virtual machine is stopped for seconds now and then (suspended, moved), and all its processes with
/// it. Then a short lease ends though nobody did wrong, as the README says of a paused holder. So an
/// instrument that knows nothing of locks watches: a thread that only sleeps. A failure of a run in which
/// it overslept proves nothing and the scenario is run again; any other failure is one.
///
/// # Panics
/// With the words of the scenario's failure.
pub fn check<H: Holdable, S: Site>(scenario: impl AsyncFn(&Rig<H, S>) + Copy + Send + 'static) {
    for _ in 0..MOST_RUNS {
        let pulse = Pulse::start();
        let failure = failure_in(move || async move {
            let rig = Rig::start().await;
            scenario(&rig).await;
            rig.finish().await;
        });
        let (Some(words), stood) = (failure, pulse.stop()) else { return };
        assert!(stood >= STANDSTILL, "{words}");
        println!("the machine stood still for {stood:?}, so this proves nothing: {words}");
    }
    panic!("the machine stood still in each of {MOST_RUNS} runs that failed");
}

/// A scenario: its name, and what [checks](check) it.
pub type Case = (&'static str, fn());

/// So many scenarios of one test at a time: most of a scenario is waiting, and each that runs has a site of its own.
const AT_A_TIME: usize = 4;

/// Runs all these scenarios of [`AnyKind`](super::AnyKind) on [`AnySite`](super::AnySite) but those that are left out by
/// name, several at a time; each failure is told with its name.
///
/// # Panics
/// If one fails, with the words of all that did; or if what is left out is not among them.
pub fn side_by_side(kind: Kind, topology: Topology, cases: &[Case], left_out: &[&str]) {
    for name in left_out {
        assert!(cases.iter().any(|(known, _)| known == name), "{name} is no scenario of these");
    }
    let (next, failed) = (AtomicUsize::new(0), Lock::new(Vec::new()));
    let run = || {
        mean(Some((kind, topology)));
        while let Some((name, check)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            if left_out.contains(name) {
                continue;
            }
            let began = Instant::now();
            let outcome = std::panic::catch_unwind(check).map_err(words_of);
            println!("{name}: {:?}, {outcome:?}", began.elapsed());
            if let Err(words) = outcome {
                failed.lock().expect("no panic inside").push(format!("{name}: {words}"));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(run);
        }
    });
    let failed = failed.into_inner().expect("no panic inside");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// What a scenario fails with, if it fails.
pub fn failure_of<H: Holdable, S: Site>(
    scenario: impl AsyncFn(&Rig<H, S>) + Copy + Send + 'static,
) -> Option<String> {
    failure_in(move || async move {
        let rig = Rig::start().await;
        scenario(&rig).await;
    })
}

/// On a thread and a runtime of its own, so that a panic ends nothing else.
fn failure_in<F: Future<Output = ()>>(run: impl FnOnce() -> F + Send + 'static) -> Option<String> {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let meant = here();
    let thread = std::thread::spawn(move || {
        mean(meant);
        runtime.block_on(run());
    });
    thread.join().err().map(words_of)
}

fn words_of(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(words) => *words,
        Err(other) => other.downcast_ref::<&str>().map_or_else(String::new, ToString::to_string),
    }
}

/// A thread that sleeps 10 ms again and again, and knows how much longer it took at worst.
struct Pulse {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Pulse {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let beat = move || {
            let mut longest = Duration::ZERO;
            while !stopped.load(Ordering::Relaxed) {
                let began = Instant::now();
                std::thread::sleep(10 * MS);
                longest = longest.max(began.elapsed());
            }
            longest
        };
        Self { stop, thread: std::thread::spawn(beat) }
    }

    fn stop(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic inside")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_heard_with_its_words() {
        let number = 7;
        assert_eq!(failure_in(move || async move { panic!("no {number}") }).unwrap(), "no 7");
        assert_eq!(failure_in(|| async { panic!("none") }).unwrap(), "none");
        assert_eq!(failure_in(|| async {}), None);
    }

    fn run(cases: &[Case], left_out: &[&str]) {
        side_by_side(Kind::Mutex, Topology::Cluster, cases, left_out);
    }

    #[test]
    #[should_panic(expected = "second: it fails")]
    fn one_that_fails_among_many_is_told_by_its_name() {
        run(&[("first", || ()), ("second", || panic!("it fails")), ("third", || ())], &[]);
    }

    #[test]
    fn what_is_left_out_is_not_run() {
        run(&[("first", || panic!("it runs")), ("second", || ())], &["first"]);
    }

    #[test]
    #[should_panic(expected = "forth is no scenario")]
    fn what_is_left_out_has_to_be_there() {
        run(&[("first", || ())], &["forth"]);
    }

    #[test]
    fn a_pulse_sleeps_at_least_once_and_no_shorter_than_it_should() {
        let pulse = Pulse::start();
        std::thread::sleep(50 * MS);
        assert!(pulse.stop() >= 10 * MS);
    }
}
