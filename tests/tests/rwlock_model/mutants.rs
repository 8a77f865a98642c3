//! Scripts with one mistake each.

use super::runner::Mutant;

pub(crate) const MUTANTS: &[Mutant] = &[];
