//! The configuration: which products a shop offers, in one file, and how many discs of each, in another.

use std::fmt::Write;
use std::io;
use std::path::Path;
use std::time::Duration;

use leasehold::FencingToken;
use leasehold_examples::{Failure, orders};

const PRODUCTS: &str = "products.conf";
const QUOTAS: &str = "quotas.conf";
/// The writer's time between its two files.
const WRITING: Duration = Duration::from_millis(40);
/// A reader's time between them.
const READING: Duration = Duration::from_millis(5);

/// Both files, as they were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    products: Half,
    quotas: Half,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Half {
    version: u32,
    /// Of the hold under which it was written; 0 without a lock.
    token: u64,
    lines: Vec<String>,
}

impl Config {
    /// Every version offers other products.
    fn of(version: u32, token: Option<FencingToken>) -> Self {
        let demand = orders::demand(&orders::all());
        let offered = || {
            let left_out = |index: usize| index % 3 == version as usize % 3;
            demand.iter().enumerate().filter(move |(index, _)| !left_out(*index)).map(|(_, of)| of)
        };
        let token = token.map_or(0, FencingToken::get);
        let half = |lines| Half { version, token, lines };
        Self {
            products: half(offered().map(|(product, _)| (*product).to_owned()).collect()),
            quotas: half(offered().map(|(product, discs)| format!("{product} {discs}")).collect()),
        }
    }

    /// Reads one file, then the other.
    pub(crate) async fn read(folder: &Path) -> Result<Self, Failure> {
        let products = Half::read(&folder.join(PRODUCTS)).await?;
        tokio::time::sleep(READING).await;
        Ok(Self { products, quotas: Half::read(&folder.join(QUOTAS)).await? })
    }

    /// The version, if both files are of the same.
    pub(crate) fn version(&self) -> Option<u32> {
        let products = self.products.lines.iter().map(String::as_str);
        let with_quota = self.quotas.lines.iter().filter_map(|line| line.split(' ').next());
        let is_whole = self.products.version == self.quotas.version
            && self.products.token == self.quotas.token
            && products.eq(with_quota);
        is_whole.then_some(self.products.version)
    }

    /// The token of its writer.
    pub(crate) fn token(&self) -> u64 {
        self.products.token
    }
}

/// Replaces one file, then the other.
pub(crate) async fn replace(
    folder: &Path,
    version: u32,
    token: Option<FencingToken>,
) -> Result<(), Failure> {
    let config = Config::of(version, token);
    config.products.write(folder, PRODUCTS).await?;
    tokio::time::sleep(WRITING).await;
    Ok(config.quotas.write(folder, QUOTAS).await?)
}

impl Half {
    async fn read(file: &Path) -> Result<Self, Failure> {
        Self::parse(&tokio::fs::read_to_string(file).await?)
    }

    fn parse(text: &str) -> Result<Self, Failure> {
        let mut lines = text.lines();
        let mut number = |name: &str| {
            let line = lines.next().and_then(|line| line.strip_prefix(name));
            line.ok_or_else(|| format!("no {name} in {text}"))
        };
        let (version, token) = (number("version ")?.parse()?, number("token ")?.parse()?);
        Ok(Self { version, token, lines: lines.map(str::to_owned).collect() })
    }

    /// A renamed file is there as a whole or not at all.
    async fn write(&self, folder: &Path, name: &str) -> io::Result<()> {
        let new = folder.join(format!("{name}.new"));
        tokio::fs::write(&new, self.text()).await?;
        tokio::fs::rename(&new, folder.join(name)).await
    }

    fn text(&self) -> String {
        let Self { version, token, lines } = self;
        let mut text = format!("version {version}\ntoken {token}\n");
        for line in lines {
            writeln!(text, "{line}").expect("memory");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let config = Config::of(7, None);
        assert_eq!(Half::parse(&config.products.text()).unwrap(), config.products);
        assert_eq!(Half::parse(&config.quotas.text()).unwrap(), config.quotas);
        assert!(Half::parse("version 7").is_err());
    }

    #[test]
    fn halves_of_two_versions_are_no_configuration() {
        let (old, new) = (Config::of(7, None), Config::of(8, None));
        assert_eq!((old.version(), new.version()), (Some(7), Some(8)));
        let torn = Config { products: new.products.clone(), quotas: old.quotas.clone() };
        assert_eq!(torn.version(), None);
        // Nor are they if only the contents give it away, or only the token.
        let relabelled = Half { version: 7, ..new.products.clone() };
        assert_eq!(Config { products: relabelled, quotas: old.quotas.clone() }.version(), None);
        let earlier = Half { token: 5, ..old.products.clone() };
        assert_eq!(Config { products: earlier, quotas: old.quotas }.version(), None);
    }
}
