//! What a Redis user needs for a lock, and users that have just that or less.

use crate::Server;

/// The commands that a mutex needs: the first four by the client, the others inside the scripts. The README
/// prints them; nothing of `@admin` or `@dangerous` is among them.
///
/// The client library's greeting is not among them, see [`refused`].
pub const MUTEX_COMMANDS: &[&str] = &[
    "evalsha",
    "eval",
    "subscribe",
    "publish",
    "pubsub|numsub",
    "time",
    "exists",
    "del",
    "pttl",
    "pexpire",
    "pexpireat",
    "set",
    "hset",
    "hget",
    "hmget",
    "hgetall",
    "hdel",
    "hlen",
    "hexists",
    "zadd",
    "zrem",
    "zcard",
    "zrank",
    "zscore",
    "zmscore",
    "zrange",
    "zrandmember",
    "zremrangebyrank",
];

/// The commands that a latch needs, all of them among those of a mutex: the first four by the client, the others inside
/// the scripts.
pub const LATCH_COMMANDS: &[&str] = &[
    "evalsha",
    "eval",
    "subscribe",
    "publish",
    "time",
    "exists",
    "pttl",
    "pexpireat",
    "hset",
    "hmget",
    "zadd",
    "zrem",
    "zscore",
    "zrange",
    "zremrangebyrank",
];

/// The commands that a fair lock needs: its operator's cancel needs none that the mutex does not.
pub const FAIR_LOCK_COMMANDS: &[&str] = MUTEX_COMMANDS;

/// The commands that a read-write lock needs: the first four by the client, the others inside the scripts. Nothing of
/// `@admin` or `@dangerous` is among them.
pub const RWLOCK_COMMANDS: &[&str] = &[
    "evalsha",
    "eval",
    "subscribe",
    "publish",
    "pubsub|numsub",
    "time",
    "exists",
    "del",
    "pttl",
    "pexpire",
    "pexpireat",
    "set",
    "get",
    "hset",
    "hget",
    "hmget",
    "hdel",
    "hlen",
    "zadd",
    "zrem",
    "zcard",
    "zcount",
    "zrank",
    "zscore",
    "zmscore",
    "zrange",
    "zrangebyscore",
    "zrandmember",
    "zremrangebyrank",
];

/// The commands that a semaphore needs: the first four by the client, the others inside the scripts. Nothing of `@admin` or
/// `@dangerous` is among them.
pub const SEMAPHORE_COMMANDS: &[&str] = &[
    "evalsha",
    "eval",
    "subscribe",
    "publish",
    "pubsub|numsub",
    "time",
    "exists",
    "del",
    "pttl",
    "pexpire",
    "pexpireat",
    "hset",
    "hget",
    "hmget",
    "hdel",
    "hlen",
    "hexists",
    "zadd",
    "zrem",
    "zcard",
    "zcount",
    "zrank",
    "zscore",
    "zmscore",
    "zrange",
    "zrangebyscore",
    "zrandmember",
    "zremrangebyrank",
];

/// The rule of a user that may do what a mutex of sessions with this prefix needs, and nothing else:
/// what stands behind `ACL SETUSER <name> on >password`.
#[must_use]
pub fn mutex_rule(prefix: &str) -> Vec<String> {
    rule(prefix, MUTEX_COMMANDS)
}

/// The same for a latch.
#[must_use]
pub fn latch_rule(prefix: &str) -> Vec<String> {
    rule(prefix, LATCH_COMMANDS)
}

/// The same for a read-write lock.
#[must_use]
pub fn rwlock_rule(prefix: &str) -> Vec<String> {
    rule(prefix, RWLOCK_COMMANDS)
}

/// The same for a semaphore.
#[must_use]
pub fn semaphore_rule(prefix: &str) -> Vec<String> {
    rule(prefix, SEMAPHORE_COMMANDS)
}

fn rule(prefix: &str, commands: &[&str]) -> Vec<String> {
    let places = [
        "resetkeys".to_owned(),
        format!("~{prefix}lh1:*"),
        "resetchannels".to_owned(),
        format!("&{prefix}lh1:inbox:*"),
        "-@all".to_owned(),
    ];
    places.into_iter().chain(commands.iter().map(|command| format!("+{command}"))).collect()
}

/// The password of every user made here.
const PASSWORD: &str = "pass";

/// Makes a user who has [`mutex_rule`] for this prefix.
pub async fn user(server: &Server, name: &str, prefix: &str) {
    make(server, name, mutex_rule(prefix)).await;
}

/// Makes a user who has [`latch_rule`] for this prefix.
pub async fn latch_user(server: &Server, name: &str, prefix: &str) {
    make(server, name, latch_rule(prefix)).await;
}

/// Makes a user who has [`rwlock_rule`] for this prefix.
pub async fn rwlock_user(server: &Server, name: &str, prefix: &str) {
    make(server, name, rwlock_rule(prefix)).await;
}

/// Makes a user who has [`semaphore_rule`] for this prefix.
pub async fn semaphore_user(server: &Server, name: &str, prefix: &str) {
    make(server, name, semaphore_rule(prefix)).await;
}

async fn make(server: &Server, name: &str, rule: Vec<String>) {
    let mut rules = vec!["reset".to_owned(), "on".to_owned(), format!(">{PASSWORD}")];
    rules.extend(rule);
    set(server, name, &rules).await;
}

/// Gives or takes a right, as `+command`, `-command`, `resetchannels`; it acts at once, also on
/// connections that are open. Of a command with subcommands all go: before 7.0 no single one can be taken.
pub async fn change(server: &Server, name: &str, rule: &str) {
    let rule = match rule.split_once('|') {
        Some((command, _)) if rule.starts_with('-') => command,
        Some(_) | None => rule,
    };
    set(server, name, &[rule.to_owned()]).await;
}

async fn set(server: &Server, name: &str, rules: &[String]) {
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg(name).arg(rules);
    command.exec_async(&mut server.connection().await).await.expect("ACL SETUSER");
}

/// The server's address with this user.
#[must_use]
pub fn url(server: &Server, name: &str) -> String {
    format!("redis://{name}:{PASSWORD}@{}/", server.addr())
}

/// With it the client library greets a server. From 7.2 on, and before 7.0 under the name of all `CLIENT` commands, a
/// refusal leaves a line in ACL LOG and harms nothing; Redis 7.0 knows no such right and refuses a rule that names it.
const GREETING: [&str; 2] = ["client|setinfo", "client"];

/// What was refused to this user, but for the client library's greeting: the lines of ACL LOG as
/// `context object`.
pub async fn refused(server: &Server, name: &str) -> Vec<String> {
    let log: Vec<std::collections::HashMap<String, redis::Value>> = redis::cmd("ACL")
        .arg("LOG")
        .arg(1000)
        .query_async(&mut server.connection().await)
        .await
        .expect("ACL LOG");
    let text = |value: Option<&redis::Value>| match value {
        Some(value) => redis::from_redis_value_ref::<String>(value).unwrap_or_default(),
        None => String::new(),
    };
    log.iter()
        .filter(|entry| text(entry.get("username")) == name)
        .filter(|entry| !GREETING.contains(&text(entry.get("object")).as_str()))
        .map(|entry| format!("{} {}", text(entry.get("context")), text(entry.get("object"))))
        .collect()
}
