//! Checks of what clients say about their holds, after a run.

/// One hold as its client saw it, in nanoseconds of one clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Who held.
    pub client: usize,
    /// The fencing token of the hold.
    pub token: u64,
    /// When the client knew that it holds.
    pub from_ns: u64,
    /// When it gave the hold up, taken before it told the server.
    pub until_ns: u64,
}

/// Pairs of holds that overlap, in the order of their beginnings; empty when exclusion held.
///
/// A hold that overlaps several others is reported with the one before it that ended last, so a
/// single broken exclusion never hides behind a shorter hold.
#[must_use]
pub fn overlaps(holds: &[Hold]) -> Vec<(Hold, Hold)> {
    let mut found = Vec::new();
    let mut last: Option<&Hold> = None;
    for hold in by_beginning(holds) {
        if let Some(last) = last.filter(|last| hold.from_ns < last.until_ns) {
            found.push((last.clone(), hold.clone()));
        }
        last = last.filter(|last| last.until_ns >= hold.until_ns).or(Some(hold));
    }
    found
}

/// Neighbours, in the order of their beginnings, whose token did not grow; empty when every grant
/// had a larger token than the one before.
#[must_use]
pub fn stale_tokens(holds: &[Hold]) -> Vec<(Hold, Hold)> {
    let ordered = by_beginning(holds);
    let neighbours = ordered.windows(2).filter(|pair| pair[1].token <= pair[0].token);
    neighbours.map(|pair| (pair[0].clone(), pair[1].clone())).collect()
}

fn by_beginning(holds: &[Hold]) -> Vec<&Hold> {
    let mut ordered: Vec<_> = holds.iter().collect();
    ordered.sort_by_key(|hold| (hold.from_ns, hold.until_ns));
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(client: usize, token: u64, from_ns: u64, until_ns: u64) -> Hold {
        Hold { client, token, from_ns, until_ns }
    }

    #[test]
    fn holds_one_after_the_other_do_not_overlap() {
        let holds = [hold(2, 11, 20, 30), hold(1, 10, 10, 20)];
        assert!(overlaps(&holds).is_empty());
        assert!(stale_tokens(&holds).is_empty());
    }

    #[test]
    fn a_second_holder_inside_a_long_hold_is_found() {
        let long = hold(1, 10, 0, 100);
        let holds = [long.clone(), hold(2, 11, 10, 20), hold(3, 12, 90, 120)];
        let found = overlaps(&holds);
        assert_eq!(found, [(long.clone(), holds[1].clone()), (long, holds[2].clone())]);
    }

    #[test]
    fn a_token_that_repeats_or_falls_is_found() {
        let holds = [hold(1, 10, 0, 1), hold(2, 10, 1, 2), hold(3, 9, 2, 3), hold(4, 11, 3, 4)];
        let clients: Vec<_> = stale_tokens(&holds).iter().map(|pair| pair.1.client).collect();
        assert_eq!(clients, [2, 3]);
    }
}
