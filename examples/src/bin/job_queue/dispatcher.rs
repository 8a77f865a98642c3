//! The dispatcher: it deals the jobs, watches the queues, and kills a worker when it holds one account and waits for others.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use leasehold_examples::Failure;
use leasehold_examples::board::Board;
use leasehold_examples::crew::Crew;
use leasehold_examples::orders::Order;

use crate::{JOBS, WORKER};

const WORKERS: usize = 4;
/// The worker that is killed.
const VICTIM: usize = 1;
/// So many jobs of an account are dealt and not done.
const DEALT_AHEAD: usize = 6;
/// A run that takes longer has failed; a usual one takes some five seconds.
const LIMIT: Duration = Duration::from_secs(60);
/// A place in the queue whose process is dead is skipped when its turn comes; that takes some milliseconds.
pub(crate) const SKIPPED_WITHIN: Duration = Duration::from_secs(1);

/// A job: its account, and its number in it.
pub(crate) type JobOf = (&'static str, usize);

pub(crate) struct Dispatcher<'a> {
    crew: &'a mut Crew,
    accounts: Vec<Account>,
    board: Board,
    story: Story,
    /// The job that the victim stands still in.
    halted: Option<JobOf>,
    killed: Option<Instant>,
}

struct Account {
    name: &'static str,
    jobs: usize,
    /// The next to be dealt.
    next: usize,
    dealt: Vec<Dealt>,
    done: usize,
    done_at: Instant,
    /// What the victim left in the queue here, or in its hold.
    dead: Vec<usize>,
    dead_held: bool,
}

/// A job that is dealt and not done.
struct Dealt {
    job: usize,
    worker: usize,
    stage: Stage,
    stood_at: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    OnItsWay,
    Stands,
    Begun,
}

/// What happened, as the dispatcher heard it.
#[derive(Debug, Default)]
pub(crate) struct Story {
    /// Who got which job first.
    pub(crate) dealt: BTreeMap<JobOf, usize>,
    /// What the killed worker had not done.
    pub(crate) left_behind: BTreeSet<JobOf>,
    /// Jobs of living workers whose hold ended before its time (this machine stood still for longer than a lease).
    pub(crate) lost: BTreeSet<JobOf>,
    /// From the kill to the next hold of the account that the killed worker held.
    pub(crate) followed: Option<Duration>,
    /// From one hold to the next, past a place of the killed worker.
    pub(crate) passed: Vec<Duration>,
}

impl<'a> Dispatcher<'a> {
    pub(crate) fn start(
        crew: &'a mut Crew,
        jobs: &BTreeMap<&'static str, Vec<Order>>,
        how: &str,
        books: &Path,
    ) -> Result<Self, Failure> {
        let books = books.to_str().ok_or("a path that is no text")?;
        for index in 0..WORKERS {
            crew.start([WORKER, &index.to_string(), how, books])?;
        }
        let account = |(&name, jobs): (&&'static str, &Vec<Order>)| Account {
            name,
            jobs: jobs.len(),
            next: 1,
            dealt: Vec::new(),
            done: 0,
            done_at: Instant::now(),
            dead: Vec::new(),
            dead_held: false,
        };
        Ok(Self {
            crew,
            accounts: jobs.iter().map(account).collect(),
            board: Board::new(jobs.iter().map(|(name, jobs)| (*name, jobs.len()))),
            story: Story::default(),
            halted: None,
            killed: None,
        })
    }

    pub(crate) async fn run(self) -> Result<Story, Failure> {
        let run = tokio::time::timeout(LIMIT, self.deal_and_hear());
        run.await.map_err(|_| format!("not done after {LIMIT:?}"))?
    }

    async fn deal_and_hear(mut self) -> Result<Story, Failure> {
        while self.accounts.iter().any(|account| account.done < account.jobs) {
            self.deal().await?;
            let (worker, line) = self.crew.next_line().await?;
            self.hear(worker, &line)?;
            if self.killed.is_none() && self.is_time_to_kill() {
                self.kill()?;
            }
        }
        Ok(self.story)
    }

    /// An account's next job is dealt when the one before has arrived at Redis: the order of arrival is the order of work.
    async fn deal(&mut self) -> Result<(), Failure> {
        for (index, account) in self.accounts.iter_mut().enumerate() {
            if account.dealt.is_empty() && account.next > account.jobs {
                // Unless it is done, its worker died: dealt again, it brings the earlier ones along.
                account.next = if account.done < account.jobs { account.jobs } else { continue };
            }
            let (job, name) = (account.next, account.name);
            let on_its_way = |dealt: &Dealt| dealt.stage == Stage::OnItsWay;
            if job > account.jobs
                || account.dealt.len() >= DEALT_AHEAD
                || account.dealt.iter().any(on_its_way)
            {
                continue;
            }
            let mut worker = (index + job) % WORKERS;
            if self.crew.is_killed(worker) {
                worker = (worker + 1 + job % (WORKERS - 1)) % WORKERS;
            }
            let halts = index == 0 && worker == VICTIM && job > JOBS / 2 && self.halted.is_none();
            if halts {
                self.halted = Some((name, job));
            }
            let verb = if halts { "halt" } else { "job" };
            self.crew.tell(worker, &format!("{verb} {name} {job}")).await?;
            self.story.dealt.entry((name, job)).or_insert(worker);
            let stage = Stage::OnItsWay;
            account.dealt.push(Dealt { job, worker, stage, stood_at: Vec::new() });
            account.next += 1;
        }
        Ok(())
    }

    fn hear(&mut self, worker: usize, line: &str) -> Result<(), Failure> {
        let words: Vec<_> = line.split(' ').collect();
        let [verb, name, job, rest @ ..] = words.as_slice() else {
            return Err(format!("worker {worker} said: {line}").into());
        };
        let at = self.accounts.iter().position(|account| account.name == *name);
        let at = at.ok_or_else(|| format!("worker {worker} said: {line}"))?;
        let account = &mut self.accounts[at];
        let job: usize = job.parse()?;
        if self.crew.is_killed(worker) {
            // Its last words: what it says to have begun it held when it died.
            account.dead_held |= *verb == "begins" && account.dead.contains(&job);
            return Ok(());
        }
        let of = account.dealt.iter_mut().find(|dealt| dealt.job == job);
        let of = of.ok_or_else(|| format!("worker {worker} said: {line}"))?;
        match *verb {
            "stands" => {
                of.stage = Stage::Stands;
                of.stood_at.extend(rest.iter().map(|&before| before.to_owned()));
            }
            "begins" => {
                of.stage = Stage::Begun;
                let stood_at = of.stood_at.join(" ");
                self.begins(at, job);
                if at == 0 {
                    let how = if stood_at.is_empty() {
                        "at once".to_owned()
                    } else {
                        format!("after {stood_at} before it")
                    };
                    self.board.say(format!("{name} job {job:>2}: worker {worker} begins {how}"))?;
                }
            }
            "lost" => {
                self.story.lost.insert((account.name, job));
                self.board.say(format!("{name} job {job}: worker {worker} lost its hold"))?;
            }
            "done" => {
                account.dealt.retain(|dealt| dealt.job != job);
                account.done = account.done.max(job);
                account.done_at = Instant::now();
                self.board.reach(at, account.done);
            }
            _ => return Err(format!("worker {worker} said: {line}").into()),
        }
        self.board.show(at, self.accounts[at].in_words());
        Ok(())
    }

    /// Whoever begins now may have come past what the killed worker left.
    fn begins(&mut self, at: usize, job: usize) {
        let (Some(killed), account) = (self.killed, &mut self.accounts[at]) else { return };
        let before = account.dead.len();
        account.dead.retain(|&dead| dead > job);
        if account.dead.len() == before {
            return;
        }
        // The release hands over: the next may be heard to begin before the last is heard to be done.
        let is_at_once =
            account.dealt.iter().any(|dealt| dealt.job != job && dealt.stage == Stage::Begun);
        if std::mem::take(&mut account.dead_held) {
            self.story.followed = self.story.followed.max(Some(killed.elapsed()));
        } else if is_at_once {
            self.story.passed.push(Duration::ZERO);
        } else {
            self.story.passed.push(account.done_at.max(killed).elapsed());
        }
    }

    /// It holds an account for good, and in another one it stands behind a living worker's job that has begun, and before
    /// one that waits. With nothing else left to do it is killed all the same, and the verdict says what is missing.
    fn is_time_to_kill(&self) -> bool {
        let Some((halted, job)) = self.halted else { return false };
        let of_halted = self.accounts.iter().filter(|account| account.name == halted);
        let mut dealt = of_halted.flat_map(|account| &account.dealt);
        if !dealt.any(|dealt| dealt.job == job && dealt.stage == Stage::Begun) {
            return false;
        }
        let mut others = self.accounts.iter().filter(|account| account.name != halted);
        others.clone().any(Account::has_the_victim_in_between)
            || others.all(|account| account.done == account.jobs)
    }

    fn kill(&mut self) -> Result<(), Failure> {
        self.crew.kill(VICTIM)?;
        self.killed = Some(Instant::now());
        for account in &mut self.accounts {
            for dealt in account.dealt.extract_if(.., |dealt| dealt.worker == VICTIM) {
                self.story.left_behind.insert((account.name, dealt.job));
                account.dead.push(dealt.job);
                account.dead_held |= dealt.stage == Stage::Begun;
            }
        }
        let (held, waiting): (Vec<&Account>, Vec<&Account>) = self
            .accounts
            .iter()
            .filter(|account| !account.dead.is_empty())
            .partition(|account| account.dead_held);
        let names = |accounts: Vec<&Account>| {
            accounts.iter().map(|account| account.name).collect::<Vec<_>>().join(", ")
        };
        self.board.say(format!(
            "worker {VICTIM} is killed: it held {} and waited for {}",
            names(held),
            names(waiting)
        ))?;
        for (row, account) in self.accounts.iter().enumerate() {
            self.board.show(row, account.in_words());
        }
        Ok(())
    }
}

impl Account {
    fn has_the_victim_in_between(&self) -> bool {
        let is_living = |dealt: &Dealt| dealt.worker != VICTIM;
        let begun = self.dealt.iter().any(|dealt| is_living(dealt) && dealt.stage == Stage::Begun);
        let place =
            self.dealt.iter().position(|dealt| !is_living(dealt) && dealt.stage == Stage::Stands);
        begun && place.is_some_and(|place| self.dealt[place..].iter().any(is_living))
    }

    /// What is going on in it, in one line.
    fn in_words(&self) -> String {
        let job = |Dealt { job, worker, stage, stood_at }: &Dealt| match (stage, stood_at.last()) {
            (Stage::OnItsWay, _) => format!("{job} on its way to worker {worker}"),
            (Stage::Begun, _) => format!("{job} at worker {worker}"),
            (Stage::Stands, before) => {
                format!("{job} ({} before)", before.map_or("?", String::as_str))
            }
        };
        self.dealt.iter().map(job).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| format!("{} ms", time.as_millis());
        let (skipped, late): (Vec<_>, Vec<_>) =
            self.passed.iter().partition(|&&passed| passed <= SKIPPED_WITHIN);
        let slowest = |times: Vec<Duration>| ms(times.into_iter().max().unwrap_or_default());
        writeln!(
            f,
            "Worker {VICTIM} left {} jobs behind, which others did in their turn:",
            self.left_behind.len()
        )?;
        writeln!(
            f,
            "* what it held was free for others after its lease: {} after its death at the latest",
            self.followed.map_or("never".to_owned(), ms)
        )?;
        writeln!(
            f,
            "* {} of its places in the queues were skipped when their turn came, the slowest in {}",
            skipped.len(),
            slowest(skipped)
        )?;
        if !late.is_empty() {
            let (places, slowest) = (late.len(), slowest(late));
            writeln!(f, "* {places} were granted to it as it died, and passed on in {slowest}")?;
        }
        Ok(())
    }
}
