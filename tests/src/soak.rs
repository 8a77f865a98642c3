//! Long loops, in full only when asked for.

/// How often a loop runs that takes `full` rounds: all of them with `scripts/test --soak`, which
/// sets `LEASEHOLD_SOAK`, else a tenth.
#[must_use]
pub fn rounds(full: u32) -> u32 {
    match std::env::var_os("LEASEHOLD_SOAK") {
        Some(_) => full,
        None => full.div_ceil(10),
    }
}
