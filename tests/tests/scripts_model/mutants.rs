//! Scripts with one mistake each.

use super::bench::Change;
use super::runner::Mutant;

macro_rules! mutant {
    ($name:literal, $from:literal, $to:literal $(,)?) => {
        Mutant { name: $name, changes: &[Change { from: $from, to: $to }] }
    };
}

pub(crate) const MUTANTS: &[Mutant] = &[
    mutant!("a dead head is granted", "if deadline <= now_ms then", "if false then"),
    mutant!(
        "the last in the queue is granted first",
        "redis.call('ZRANGE', queue, 0, 0)[1]",
        "redis.call('ZRANGE', queue, -1, -1)[1]",
    ),
    mutant!(
        "a pushed grant gets its full lease",
        "callers[head] and lease or math.min(lease, grant_ms)",
        "lease",
    ),
    mutant!("a script publishes to its caller", "if not callers[head] and announce", "if announce"),
    mutant!(
        "a grant that nobody heard stands",
        "announce(head, minted, ms) == 0",
        "announce(head, minted, ms) == -1",
    ),
    mutant!(
        "the bound of heads is not told",
        "    end\n  end\n  return 1\nend",
        "    end\n  end\n  return 0\nend",
    ),
    mutant!(
        "a cancelled id is forgotten",
        "return until_ms and tonumber(until_ms) > now_ms",
        "return false",
    ),
    mutant!(
        "a cancelled id is remembered too long",
        "return until_ms and tonumber(until_ms) > now_ms",
        "return until_ms",
    ),
    mutant!("a late cancel is not noted", "if late == '1' then", "if false then"),
    mutant!("the notes of late cancels have no end", "redis.call('PEXPIRE', gone, 60000)", ""),
    mutant!("release does not settle", "reply[2] = settle({})", "reply[2] = 0"),
    mutant!(
        "a release of the usual case passes over the queue",
        "and redis.call('EXISTS', queue) == 0 then",
        "then",
    ),
    mutant!(
        "a release of the usual case ends the other entries",
        "redis.call('HLEN', holds) == 3",
        "redis.call('HLEN', holds) >= 3",
    ),
    mutant!(
        "a release ends the key too late",
        "redis.call('PEXPIREAT', holds, text(hold.latest))",
        "",
    ),
    mutant!(
        "an early release does not cool down",
        "if hold.live == 1 and cool_until > now_ms then",
        "if false then",
    ),
    mutant!(
        "a cool-down lasts longer where the clock went back",
        "math.min(hold.since[id], now_ms) + at_least_ms",
        "hold.since[id] + at_least_ms",
    ),
    mutant!(
        "a late copy queues again during the cool-down",
        " or cools(id) then return",
        " then return",
    ),
    mutant!(
        "a resend counts twice",
        "if holds_id(id) then return taken() end",
        "if holds_id(id) then\n  add_entry(id .. '2', now_ms, note, now_ms + lease_ms)\n  return taken()\nend",
    ),
    mutant!(
        "a resend moves the deadline",
        "if holds_id(id) then return taken() end",
        "if holds_id(id) then\n  add_entry(id, now_ms, note, now_ms + lease_ms)\n  return taken()\nend",
    ),
    mutant!(
        "a further entry does not extend the key",
        "    redis.call('PEXPIREAT', holds, text(deadline))\n  end\nend",
        "    if hold.live == 1 then redis.call('PEXPIREAT', holds, text(deadline)) end\n  end\nend",
    ),
    mutant!(
        "re-entry is open to any owner",
        "hold.owner == owner and not hold.cooling",
        "not hold.cooling",
    ),
    mutant!(
        "re-entry goes on in the cool-down",
        "and not hold.cooling and hold.live > 0",
        "and hold.live > 0",
    ),
    mutant!(
        "a hold has any number of entries",
        "if hold.live >= MOST_ENTRIES then return false end",
        "",
    ),
    mutant!(
        "an acquire refused for its entries still waits",
        "    if known then\n      leave(id)\n      settle({})\n    end",
        "    if known and joined then\n      leave(id)\n      settle({})\n    end",
    ),
    mutant!(
        "a newcomer passes the queue",
        "redis.call('EXISTS', holds, queue, gone) == 0",
        "redis.call('EXISTS', holds, gone) == 0",
    ),
    mutant!(
        "a try passes the queue",
        "  local again = settle({})\n  local room = fits(id)",
        "  local again, room = 0, fits(id)\n  if room == 1 then\n    take(id, owner, note, lease_ms, token_for(id))\n    return taken()\n  end",
    ),
    mutant!(
        "a full queue takes one more",
        "return length >= max_waiters, again",
        "return length > max_waiters, again",
    ),
    mutant!(
        "dead waiters count against the living",
        "if waiter(member) <= now_ms then leave(member) end",
        "",
    ),
    mutant!(
        "an old ticket is ignored",
        "if ticket == 0 or ticket > math.max(last, now_us) then",
        "if true then",
    ),
    mutant!(
        "a ticket from the future counts",
        "if ticket == 0 or ticket > math.max(last, now_us) then",
        "if ticket == 0 then",
    ),
    mutant!(
        "a clock that goes back lets newcomers pass",
        "ticket = math.max(last + 1, now_us)",
        "ticket = now_us",
    ),
    mutant!("a check refreshes nobody", "if #usual > 0 then refresh(unpack(usual)) end", "",),
    mutant!("a check does not say that it looks", "if deaf == '1' then", "if false then",),
    mutant!("who looks is taken for dead", "== 0 and not looks then", "== 0 then"),
    mutant!("who looks does so for ever", "(tonumber(looks) or 0) > now_ms", "looks ~= ''"),
    mutant!(
        "a check refreshes the first alone",
        "refresh(unpack(usual))",
        "refresh(usual[1], usual[2], usual[3])",
    ),
    mutant!("a check does not see who was cancelled", "and not marks[n]", ""),
    mutant!("a check does not see whose owner holds", "or may_reenter(id, owners[i]) end", "end",),
    mutant!(
        "a waiter that had its turn keeps its place",
        "if known and ticket ~= 0 and not",
        "if known and not",
    ),
    mutant!("leaving keeps the deadline", "redis.call('HDEL', timeouts, id)", ""),
    mutant!(
        "the queue has no end",
        "if redis.call('PTTL', queue) < wait_ms then redis.call('PEXPIREAT', queue, text(deadline)) end",
        "",
    ),
    mutant!(
        "the queue ends with its first waiter",
        "if redis.call('PTTL', queue) < wait_ms then",
        "if redis.call('PTTL', queue) == -1 then",
    ),
    mutant!(
        "the queue lives as long as its first waiter",
        "local lives_on = false",
        "local lives_on = redis.call('EXISTS', queue) == 1",
    ),
    mutant!("a token may repeat", "if number >= fresh then", "if false then"),
    mutant!(
        "a client's highest token is ignored",
        "if floor >= fresh and floor <= now_us + 86400000000 then",
        "if false then",
    ),
    mutant!("any floor is believed", "and floor <= now_us + 86400000000", ""),
    mutant!(
        "renew creates",
        "if not deadline or deadline <= now_ms or found[2] then",
        "if not deadline then deadline, rest = 0, '|0|' end\n  if found[2] then",
    ),
    mutant!(
        "renew revives what has ended",
        "if not deadline or deadline <= now_ms or found[2] then",
        "if not deadline or found[2] then",
    ),
    mutant!(
        "renew holds during the cool-down",
        "if not deadline or deadline <= now_ms or found[2] then",
        "if not deadline or deadline <= now_ms then",
    ),
    mutant!("renew shortens", "if wanted > deadline then", "if true then"),
    mutant!(
        "renew does not extend the key",
        "if redis.call('PTTL', holds) < lease_ms then redis.call('PEXPIREAT', holds, text(wanted)) end",
        "",
    ),
    mutant!(
        "renew shortens the key",
        "if redis.call('PTTL', holds) < lease_ms then redis.call('PEXPIREAT', holds, text(wanted)) end",
        "redis.call('PEXPIREAT', holds, text(wanted))",
    ),
    mutant!("adopt shortens", "math.max(latest, now_ms + lease_ms)", "now_ms + lease_ms"),
    mutant!(
        "adopt takes a stranger's hold",
        "if not may_reenter(id, owner) then",
        "if hold.live == 0 then",
    ),
    mutant!("adopt leaves the earlier entries", "redis.call('HDEL', holds, unpack(earlier))", ""),
    mutant!("adopt leaves what has ended", "  drop_expired()\n  hold.entries", "  hold.entries"),
    mutant!(
        "a late copy of what was adopted takes again",
        "    redis.call('ZADD', gone, text(now_ms + 60000), entry)\n",
        "",
    ),
    mutant!("adopt does not tell", "redis.pcall('PUBLISH', inbox, uuid .. ' 3')", ""),
    mutant!(
        "force ends whatever hold it finds",
        "if hold.token == forced then",
        "if hold.exists then",
    ),
    mutant!(
        "force does not mark the holder",
        "for id, _ in pairs(hold.entries) do mark(id) end",
        "",
    ),
    mutant!(
        "force does not know its own copy",
        "elseif redis.call('ZSCORE', gone, 'forced|' .. forced) then",
        "elseif false then",
    ),
    mutant!("force does not settle", "return { code, settle({}) }", "return { code, 0 }"),
    mutant!("force does not tell", "for id, _ in pairs(told) do tell(id, '2') end", ""),
    mutant!(
        "an operator's cancel ignores the ticket",
        "redis.call('ZRANGE', queue, place, place, 'BYSCORE', 'LIMIT', 0, 16)",
        "redis.call('ZRANGE', queue, 0, -1)",
    ),
    mutant!(
        "an operator's cancel ignores the trace",
        "if note and string.sub(note, 1, #trace + 1) == trace .. '|' then",
        "if note then",
    ),
    mutant!(
        "an operator's cancel does not mark the waiter",
        "  mark(id)\n  mark(cancelled)",
        "  mark(cancelled)",
    ),
    mutant!(
        "an operator's cancel does not know its own copy",
        "elseif redis.call('ZSCORE', gone, cancelled) then",
        "elseif false then",
    ),
    mutant!(
        "an operator's cancel leaves the waiter",
        "  leave(id)\n  tell(id, '6')",
        "  tell(id, '6')",
    ),
    mutant!("an operator's cancel does not tell", "tell(id, '6')", ""),
    mutant!(
        "an operator's cancel does not settle",
        "local again = settle({})\nreturn { code, again }",
        "return { code, 0 }",
    ),
    mutant!(
        "a list of no waiters is the whole queue",
        "most > 0 and redis.call('ZRANGE', queue, 0, most - 1, 'WITHSCORES') or {}",
        "redis.call('ZRANGE', queue, 0, most - 1, 'WITHSCORES')",
    ),
];
