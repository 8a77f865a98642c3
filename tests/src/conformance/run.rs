//! Running a scenario, and telling its failures from the machine's.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;

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
    std::thread::spawn(move || runtime.block_on(run())).join().err().map(words_of)
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

    #[test]
    fn a_pulse_sleeps_at_least_once_and_no_shorter_than_it_should() {
        let pulse = Pulse::start();
        std::thread::sleep(50 * MS);
        assert!(pulse.stop() >= 10 * MS);
    }
}
