//! What the types refuse. Each example that must not compile stands beside one that does, so that it
//! fails for the stated reason only.

/// B132: work that needs the lock cannot run on busy: there is no guard without a hold.
///
/// ```no_run
/// # async fn run(lock: leasehold_mutex::Mutex) -> Result<(), Box<dyn std::error::Error>> {
/// if let Some(guard) = lock.try_acquire().await? {
///     guard.while_held(async {}).await?;
/// }
/// # Ok(()) }
/// ```
/// ```compile_fail
/// # async fn run(lock: leasehold_mutex::Mutex) -> Result<(), Box<dyn std::error::Error>> {
/// let perhaps = lock.try_acquire().await?;
/// perhaps.while_held(async {}).await?;
/// # Ok(()) }
/// ```
pub mod b132_busy_has_no_guard {}

/// B129: nothing is released twice: `release` takes the guard.
///
/// ```no_run
/// # async fn run(guard: leasehold_mutex::Guard) -> Result<(), Box<dyn std::error::Error>> {
/// guard.release().await?;
/// # Ok(()) }
/// ```
/// ```compile_fail
/// # async fn run(guard: leasehold_mutex::Guard) -> Result<(), Box<dyn std::error::Error>> {
/// guard.release().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
pub mod b129_a_guard_is_released_once {}

/// A guard without its mode has no fencing token: only an exclusive hold has one.
///
/// ```no_run
/// # fn run(guard: leasehold_mutex::Guard) {
/// let token = guard.fencing_token();
/// # }
/// ```
/// ```compile_fail
/// # fn run(guard: leasehold_mutex::Guard) {
/// let token = guard.into_any().fencing_token();
/// # }
/// ```
pub mod any_guard_has_no_token {}
