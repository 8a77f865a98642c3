//! Which commands a fault befalls.

/// Chooses commands by their content and their count, never by time: the same commands in the
/// same order meet the same faults.
///
/// Commands of all links are counted together, in their order of arrival at the proxy. A client's
/// own handshake (HELLO, CLIENT) counts too, unless [`Pick::containing`] leaves it out.
#[derive(Clone, Debug)]
pub struct Pick {
    rule: Rule,
    containing: Vec<u8>,
    counted: u64,
}

#[derive(Clone, Debug)]
enum Rule {
    Next(u64),
    Every(u64),
    AtRandom { percent: u64, seed: u64 },
}

impl Pick {
    /// No command: ends a fault.
    #[must_use]
    pub fn none() -> Self {
        Self::next(0)
    }

    /// All commands.
    #[must_use]
    pub fn all() -> Self {
        Self::every(1)
    }

    /// The next `count` commands.
    #[must_use]
    pub fn next(count: u64) -> Self {
        Self::by(Rule::Next(count))
    }

    /// The `nth` command and each `nth` after it.
    #[must_use]
    pub fn every(nth: u64) -> Self {
        assert!(nth > 0, "every 0th command is none: use Pick::none()");
        Self::by(Rule::Every(nth))
    }

    /// Each command with this chance, decided by the seed and the command's number.
    #[must_use]
    pub fn at_random(percent: u64, seed: u64) -> Self {
        Self::by(Rule::AtRandom { percent, seed })
    }

    /// Only looks at (and counts) commands that contain these bytes, such as a script's SHA or an
    /// argument.
    #[must_use]
    pub fn containing(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.containing = bytes.as_ref().to_vec();
        self
    }

    /// Whether the fault befalls this command; counts it.
    pub(super) fn takes(&mut self, command: &[u8]) -> bool {
        if !contains(command, &self.containing) {
            return false;
        }
        self.counted += 1;
        match self.rule {
            Rule::Next(count) => self.counted <= count,
            Rule::Every(nth) => self.counted.is_multiple_of(nth),
            Rule::AtRandom { percent, seed } => mix(seed ^ mix(self.counted)) % 100 < percent,
        }
    }

    fn by(rule: Rule) -> Self {
        Self { rule, containing: Vec::new(), counted: 0 }
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    part.is_empty() || bytes.windows(part.len()).any(|window| window == part)
}

/// The finaliser of splitmix64.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(mut pick: Pick, commands: &[&str]) -> Vec<usize> {
        let numbered = commands.iter().enumerate();
        numbered.filter(|(_, text)| pick.takes(text.as_bytes())).map(|(at, _)| at).collect()
    }

    #[test]
    fn rules_count_only_what_contains_the_bytes() {
        let commands = ["a", "xa", "b", "xb", "xc", "xd"];
        assert_eq!(taken(Pick::none(), &commands), []);
        assert_eq!(taken(Pick::next(2), &commands), [0, 1]);
        assert_eq!(taken(Pick::next(2).containing("x"), &commands), [1, 3]);
        assert_eq!(taken(Pick::every(2).containing("x"), &commands), [3, 5]);
        assert_eq!(taken(Pick::all(), &commands).len(), 6);
    }

    #[test]
    fn chance_follows_the_seed() {
        let commands = [""; 1000];
        let once = taken(Pick::at_random(20, 1), &commands);
        assert_eq!(once, taken(Pick::at_random(20, 1), &commands));
        assert_ne!(once, taken(Pick::at_random(20, 2), &commands));
        assert!((150..250).contains(&once.len()), "{} of 1000 at 20 %", once.len());
    }
}
