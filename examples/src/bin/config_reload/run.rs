//! The parent: it orders the reloads, kills a reader, and keeps the score.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use leasehold_examples::Failure;
use leasehold_examples::board::Board;
use leasehold_examples::crew::Crew;
use leasehold_examples::report::grouped;

use crate::{READER, WRITER};

/// Processes that read.
pub(crate) const READERS: usize = 4;
/// How often the configuration is replaced.
pub(crate) const VERSIONS: u32 = 10;
/// Before this version a reader is killed.
pub(crate) const KILLED_BEFORE: u32 = 6;
/// The reader that is killed.
const VICTIM: usize = 1;
/// Between two reloads; meanwhile there is always somebody reading.
const PAUSE: Duration = Duration::from_millis(200);
/// A run in which nothing happens for longer has failed.
const LIMIT_OF_A_STEP: Duration = Duration::from_secs(30);

pub(crate) struct Run<'a> {
    crew: &'a mut Crew,
    board: Board,
    /// The newest version that each reading process has seen.
    seen: [u32; READERS],
    reads: [u64; READERS],
    ended: usize,
    stopped: bool,
    story: Story,
}

/// What happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Story {
    pub(crate) reloads: Vec<Reload>,
    pub(crate) reads: u64,
    /// Reads that saw half of a configuration.
    pub(crate) torn: u32,
    /// Reads of what an earlier writer left.
    pub(crate) stale: u32,
    /// Holds of living processes that ended before their time (this machine stood still for longer than a lease).
    pub(crate) lost: u32,
    pub(crate) longest_read_wait: Duration,
}

/// One replacement of the configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reload {
    pub(crate) version: u32,
    pub(crate) waited: Duration,
    /// Whether the writer read what it had written.
    pub(crate) is_verified: bool,
    /// How many read meanwhile.
    pub(crate) beside: u32,
}

impl<'a> Run<'a> {
    pub(crate) fn start(crew: &'a mut Crew, how: &str, folder: &Path) -> Result<Self, Failure> {
        let folder = folder.to_str().ok_or("a path that is no text")?;
        for _ in 0..READERS {
            crew.start([READER, how, folder])?;
        }
        crew.start([WRITER, how, folder])?; // its number is READERS
        let rows = (0..READERS).map(|reader| format!("reader {reader}"));
        let rows = rows.chain(["writer".to_owned()]).map(|row| (row, VERSIONS as usize));
        Ok(Self {
            crew,
            board: Board::new(rows),
            seen: [0; READERS],
            reads: [0; READERS],
            ended: 0,
            stopped: false,
            story: Story::default(),
        })
    }

    pub(crate) async fn run(mut self) -> Result<Story, Failure> {
        for version in 1..=VERSIONS {
            if version == KILLED_BEFORE {
                self.crew.tell(VICTIM, "halt").await?;
                self.until("a reader to kill", |run| run.stopped).await?;
                self.crew.kill(VICTIM)?;
                self.board.say(format!("reader {VICTIM} is killed while it reads"))?;
                self.board.show(VICTIM, "killed");
            }
            self.crew.tell(READERS, &format!("reload {version}")).await?;
            self.board.show(READERS, format!("wants to write version {version}"));
            self.until("a reload", |run| run.story.is_done(version)).await?;
            if version == 1 {
                self.tell_readers("read").await?;
            }
            // Whoever starved would never see it.
            let is_seen =
                |run: &Self| run.living().iter().all(|&reader| run.seen[reader] >= version);
            self.until("every reader to see it", is_seen).await?;
            self.listen_for(PAUSE).await?;
        }
        self.tell_readers("end").await?;
        self.until("the readers to end", |run| run.ended == run.living().len()).await?;
        self.story.reads = self.reads.iter().sum();
        Ok(self.story)
    }

    fn living(&self) -> Vec<usize> {
        (0..READERS).filter(|&reader| !self.crew.is_killed(reader)).collect()
    }

    async fn tell_readers(&mut self, word: &str) -> Result<(), Failure> {
        for reader in self.living() {
            self.crew.tell(reader, word).await?;
        }
        Ok(())
    }

    async fn listen_for(&mut self, time: Duration) -> Result<(), Failure> {
        match tokio::time::timeout(time, self.until("nothing", |_| false)).await {
            Ok(failed) => failed,
            Err(_elapsed) => Ok(()),
        }
    }

    async fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) -> Result<(), Failure> {
        let listen = async {
            while !is_so(self) {
                let (process, line) = self.crew.next_line().await?;
                self.hear(process, &line)?;
            }
            Ok(())
        };
        tokio::time::timeout(LIMIT_OF_A_STEP, listen)
            .await
            .map_err(|_| format!("waited {LIMIT_OF_A_STEP:?} for {what}"))?
    }

    fn hear(&mut self, process: usize, line: &str) -> Result<(), Failure> {
        let words: Vec<_> = line.split(' ').collect();
        match words.as_slice() {
            ["sees", version] => {
                self.seen[process] = version.parse()?;
                self.board.reach(process, self.seen[process] as usize);
            }
            ["reads", reads, longest_ms] => {
                self.reads[process] = reads.parse()?;
                let longest = Duration::from_millis(longest_ms.parse()?);
                self.story.longest_read_wait = self.story.longest_read_wait.max(longest);
                if !self.crew.is_killed(process) {
                    self.board.show(process, format!("{} reads", grouped(reads)));
                }
            }
            ["torn"] => self.story.torn += 1,
            ["stale"] => self.story.stale += 1,
            ["lost"] => self.story.lost += 1,
            ["stopped"] => self.stopped = true,
            ["ended"] => self.ended += 1,
            ["writes", version, ms] => {
                let (version, waited) = (version.parse()?, Duration::from_millis(ms.parse()?));
                self.board.show(READERS, format!("writes version {version}"));
                self.story.reloads.retain(|reload| reload.version != version);
                self.story.reloads.push(Reload { version, waited, ..Reload::default() });
            }
            ["verified", _, beside] => self.checked(true, beside.parse()?)?,
            ["unverified", _] => self.checked(false, 0)?,
            _ => return Err(format!("process {process} said: {line}").into()),
        }
        Ok(())
    }

    fn checked(&mut self, is_verified: bool, beside: u32) -> Result<(), Failure> {
        let reload = self.story.reloads.last_mut().ok_or("checked before it was written")?;
        reload.is_verified = is_verified;
        reload.beside = beside;
        let Reload { version, waited, .. } = reload;
        self.board.reach(READERS, *version as usize);
        self.board.say(format!(
            "version {version:>2}: the writer waited {:>4} ms, and {} it beside {beside} readers",
            waited.as_millis(),
            if is_verified { "checked" } else { "did not find" },
        ))?;
        Ok(())
    }
}

impl Story {
    fn is_done(&self, version: u32) -> bool {
        self.reloads.iter().any(|reload| reload.version == version && reload.is_verified)
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waits = |late: bool| {
            let reloads = self.reloads.iter();
            let of = reloads.filter(move |reload| (reload.version == KILLED_BEFORE) == late);
            of.map(|reload| reload.waited).max().unwrap_or_default().as_millis()
        };
        let reads = grouped(self.reads);
        writeln!(
            f,
            "{reads} reads beside {} reloads; {} saw half of one.",
            self.reloads.len(),
            self.torn
        )?;
        write!(
            f,
            "The writer waited {} ms at the most, and {} ms for the reader that was killed, by its lease;\n\
             no reader waited longer than {} ms, behind that writer.",
            waits(false),
            waits(true),
            self.longest_read_wait.as_millis()
        )
    }
}
