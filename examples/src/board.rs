//! What a person watches: lines that stay, and beneath them, on a terminal only, a few rows that move.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Rows with a bar each. They disappear when this is dropped; the lines stay.
#[derive(Debug)]
pub struct Board {
    all: MultiProgress,
    rows: Vec<ProgressBar>,
    is_live: bool,
}

impl Board {
    /// A row for each title, with so many steps.
    pub fn new<T: Into<String>>(rows: impl IntoIterator<Item = (T, usize)>) -> Self {
        let is_live = io::stdout().is_terminal();
        let target =
            if is_live { ProgressDrawTarget::stdout() } else { ProgressDrawTarget::hidden() };
        let all = MultiProgress::with_draw_target(target);
        let style =
            ProgressStyle::with_template("{prefix:12} [{bar:24}] {pos:>4}/{len:<4} {wide_msg}");
        let row = |(title, steps): (T, usize)| {
            let row = all.add(ProgressBar::new(steps as u64).with_prefix(title.into()));
            if let Ok(style) = &style {
                row.set_style(style.clone().progress_chars("=> "));
            }
            if is_live {
                row.enable_steady_tick(Duration::from_millis(200));
            }
            row
        };
        let rows = rows.into_iter().map(row).collect();
        Self { all, rows, is_live }
    }

    /// So many steps of a row are done.
    pub fn reach(&self, row: usize, steps: usize) {
        self.rows[row].set_position(steps as u64);
    }

    /// What is going on in a row, in a few words.
    pub fn show(&self, row: usize, words: impl Into<String>) {
        self.rows[row].set_message(words.into());
    }

    /// A line that stays.
    ///
    /// # Errors
    /// The standard output is closed.
    pub fn say(&self, line: impl AsRef<str>) -> io::Result<()> {
        match self.is_live {
            true => self.all.println(line),
            false => writeln!(io::stdout(), "{}", line.as_ref()),
        }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        for row in &self.rows {
            row.finish_and_clear();
        }
    }
}
