//! Scripts with one mistake each.

use super::bench::Change;
use super::runner::Mutant;

macro_rules! mutants {
    ($($name:literal: $from:literal => $to:literal;)*) => {
        &[$(Mutant { name: $name, changes: &[Change { from: $from, to: $to }] }),*]
    };
}

pub(crate) const MUTANTS: &[Mutant] = mutants! {
    "a resend counts twice": "if counted_as > generation then" => "if false then";
    "an id of an earlier generation counts as counted":
        "if counted_as > generation then" => "if counted_as > 0 then";
    "a resend is answered with what is left now":
        "answer = count - (counted_as - generation)" => "answer = left";
    "an id is not kept": "redis.call('ZADD', ids, text(generation + count - left + 1), id)" => "";
    "a count takes two": "'left', text(left - 1))" => "'left', text(math.max(0, left - 2)))";
    "the count goes below zero": "elseif left > 0 then" => "else";
    "a call of another generation counts":
        "if text(generation) ~= meant then return { 0, text(generation) } end" => "";
    "a reset latch counts":
        "if now_is == RESET then return { 2, text(generation) } end" => "";
    "it opens one too early": "if left == 0 then return OPEN end" => "if left <= 1 then return OPEN end";
    "it is open when it is not armed":
        "if not generation then return ABSENT end" => "if not generation then return OPEN end";
    "who waits is not told of the opening": "left == 0 and tell('1') or 0" => "0";
    "who waits is told before it is open": "left == 0 and tell('1')" => "left <= 1 and tell('1')";
    "who waits is not told of a reset": "return { code, tell('2') }" => "return { code, 0 }";
    "a reset is told as open": "return { code, tell('2') }" => "return { code, tell('1') }";
    "who was told stays": "'ZREMRANGEBYRANK', waiters, 0, #found / 2 - 1" => "'ZREMRANGEBYRANK', waiters, 0, -1000";
    "more leave than were told": "waiters, 0, #found / 2 - 1" => "waiters, 0, #found / 2";
    "the dead are told": "if inbox and tonumber(found[i + 1]) > now_ms then" => "if inbox then";
    "the bound of those told is not answered":
        "return redis.pcall('EXISTS', waiters) == 1 and 1 or 0" => "return 0";
    "an inbox is cut at its bars": "'^([^|]*)|(.*)$'" => "'^(.*)|(.*)$'";
    "an armed latch is armed again": "state() < RESET then" => "state() < OPEN then";
    "an open latch cannot be armed after its reset":
        "state() < RESET then" => "state() < ABSENT then";
    "a resent arm is refused":
        "if armed_as then return { 1, text(tonumber(armed_as)) } end\n  return { 0" => "return { 0";
    "a late arm arms again":
        "if armed_as or state() < RESET then" => "if armed_as and tonumber(armed_as) == generation or state() < RESET then";
    "a generation follows the clock alone":
        "generation = math.max(now_us, (generation or 0) + 1, tonumber(last[2] or 0) + 1)" => "generation = now_us";
    "the ids do not move the generation":
        ", tonumber(last[2] or 0) + 1)" => ")";
    "an arm is not kept": "redis.call('ZADD', ids, fresh, call_id)" => "";
    "a latch without its ids goes on":
        "return redis.call('EXISTS', ids) == 1 and WAITS or ABSENT" => "return WAITS";
    "a count does not restart the time":
        "local refused = type(set) == 'table' and set or end_in(expires_ms)" => "local refused";
    "the ids end with a short latch":
        "text(now_ms + math.max(ms, KEPT_MS))" => "text(now_ms + ms)";
    "the latch has no end":
        "refused = redis.pcall('PEXPIREAT', latch, text(now_ms + ms))" => "refused = 1";
    "what is old stays": "if old > 0 then" => "if false then";
    "what is of the last minute is swept":
        "math.min(generation, now_us - KEPT_MS * 1000)" => "generation";
    "a reset forgets": "redis.call('HSET', latch, 'over', '1')" => "redis.call('DEL', latch)";
    "a reset hits any generation": "or text(generation) ~= meant then return { 0, 0 }" => "then return { 0, 0 }";
    "a resent reset says that it did it": "local code = 2" => "local code = 1";
    "the mark of a reset stays too long": "  end_in(KEPT_MS)" => "";
    "a reset latch waits": "if over then return RESET end" => "";
    "a wait does not listen": "redis.call('ZADD', waiters, text(now_ms + wait_ms), listener)" => "";
    "a wait goes on listening at an open latch":
        "  redis.call('ZREM', waiters, listener)\n  if now_is == OPEN" => "  if now_is == OPEN";
    "the list of those who wait has no end":
        "local refused = redis.pcall('PEXPIREAT', waiters, text(now_ms + wait_ms))" => "local refused";
    "the list of those who wait ends with its first":
        "if redis.call('PTTL', waiters) < wait_ms then" => "if redis.call('ZCARD', waiters) == 1 then";
    "the dead stay in the list": "if dead > 0 then" => "if false then";
    "the living are swept": "if tonumber(first[i]) <= now_ms then" => "if tonumber(first[i]) <= now_ms + 3000 then";
    "nobody looks when it ends":
        "check_ms = math.max(1, math.min(check_ms, ends_ms))" => "";
    "who leaves stays": "if redis.call('ZREM', waiters, listener) == 1" => "if redis.call('ZSCORE', waiters, listener)";
    "an open latch tells how many were left":
        "if now_is == OPEN then return { 1, text(generation), 0 } end" => "if now_is == OPEN then return { 1, text(generation), 1 } end";
};
