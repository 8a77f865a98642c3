//! Scripts with one mistake each.

use super::bench::Change;
use super::runner::Mutant;

macro_rules! mutants {
    ($(($name:literal, $from:literal, $to:literal)),* $(,)?) => {
        &[$(Mutant { name: $name, changes: &[Change { from: $from, to: $to }] }),*]
    };
}

pub(crate) const MUTANTS: &[Mutant] = mutants![
    // lib/shares.lua
    (
        "what has ended holds",
        "return deadline > now_ms and deadline or nil",
        "return deadline > 0 and deadline or nil"
    ),
    (
        "an owner's ended holds count",
        "if holds_id(id) then live[#live + 1] = id end",
        "live[#live + 1] = id"
    ),
    (
        "a list without holds stays",
        "if #ids == 0 then return redis.call('HDEL', notes, '=' .. owner) end",
        ""
    ),
    (
        "the holds end with the newest",
        "if redis.call('PTTL', holds) < deadline - now_ms then redis.call('PEXPIREAT', holds, text(deadline)) end",
        "redis.call('PEXPIREAT', holds, text(deadline))"
    ),
    (
        "the notes end with the first",
        "if redis.call('PTTL', notes) < deadline - now_ms then",
        "if redis.call('PTTL', notes) < 0 then"
    ),
    ("an owner has one hold", "mates[#mates + 1] = id", "mates = { id }"),
    ("renew shortens", "if deadline <= score(id) then return end", ""),
    (
        "renew does not extend the keys",
        "redis.call('ZADD', holds, text(deadline), id)\n  lasts(math.max(deadline, now_ms + idle_ms))\n  raised(id, deadline)",
        "redis.call('ZADD', holds, text(deadline), id)\n  raised(id, deadline)"
    ),
    (
        "renewing a writer lets readers in",
        "redis.call('ZADD', holds, text(deadline), id)\n  lasts(math.max(deadline, now_ms + idle_ms))\n  raised(id, deadline)",
        "redis.call('ZADD', holds, text(deadline), id)\n  lasts(math.max(deadline, now_ms + idle_ms))"
    ),
    ("a removed hold keeps its note", "redis.call('HDEL', notes, unpack(ids))", ""),
    ("a removed hold stays in its owner's list", "keep_entries(owner, entries_of(owner))", ""),
    ("nothing is swept", "if #ended > 0 then remove(ended) end", ""),
    (
        "the mark is swept before its writers",
        "if #ended > 0 then remove(ended) end",
        "if #ended > 0 then\n    remove(ended)\n    if score('~w') <= now_ms then redis.call('ZREM', holds, '~w') end\n  end"
    ),
    (
        "the bound of a sweep is not told",
        "unswept = #ended == MOST_EXPIRED and 1 or 0",
        "unswept = 0"
    ),
    ("any end may be a cool-down", "(cools_beside(id) or #entries_of(owner) <= 1)", "true"),
    ("an early release does not cool down", "if cool_until > now_ms and (", "if false and ("),
    (
        "a cool-down lasts longer where the clock went back",
        "math.min(since, now_ms) + at_least_ms",
        "since + at_least_ms"
    ),
    ("a cool-down keeps the keys too short", "lasts(cool_until)", ""),
    (
        "a writer does not cool down while its owner reads on",
        "(cools_beside(id) or #entries_of(owner) <= 1)",
        "#entries_of(owner) <= 1"
    ),
    (
        "a writer that ends keeps readers out",
        "    remove({ id })\n  end\n  ended(id)\n",
        "    remove({ id })\n  end\n"
    ),
    (
        "a forced end is not told apart",
        "return (marks[1] and 2) or (marks[2] and 1) or 0\nend",
        "return marks[2] and 1 or 0\nend"
    ),
    (
        "an adopted end is not told apart",
        "return (marks[1] and 2) or (marks[2] and 1) or 0\nend",
        "return marks[1] and 2 or 0\nend"
    ),
    (
        "a waiter is told of any holder",
        "if since == 0 or other == inbox then",
        "if since == 0 then"
    ),
    // lib/rwlock.lua
    (
        "a writer does not keep readers out",
        "if writes(id) and score('~w') < deadline then",
        "if false then"
    ),
    ("a writer's mark is never raised", "score('~w') < deadline then", "score('~w') == 0 then"),
    (
        "the end of one writer lets readers in beside another",
        "if last then\n    redis.call('ZADD', holds, text(last[2]), '~w')\n  else",
        "do"
    ),
    (
        "the mark goes down to the first to end",
        "local last = writers()[1]",
        "local all = writers()\n  local last = all[#all]"
    ),
    (
        "a cool-down does not keep readers out",
        "if writes(found[i]) then",
        "if writes(found[i]) and string.sub(found[i], 1, 1) ~= '-' then"
    ),
    ("cool-downs of one owner pile up", "ipairs(writes(id) and writers() or {})", "ipairs({})"),
    (
        "a cool-down ends the longer one before it",
        "cool_until = math.max(cool_until, deadline)",
        ""
    ),
    (
        "an owner waits for its own cool-down",
        "or score('~w') > now_ms or live() == #mates",
        "or token_of_writer(mates) ~= nil or live() == #mates"
    ),
    (
        "a writer fits beside readers",
        "  local others = live()\n",
        "  local others = score('~w') > now_ms and 1 or 0\n"
    ),
    ("a writer waits for its own reader", "if others > 0 and owner then", "if false then"),
    (
        "a writer is let in beyond the bound of its owner",
        "others = mates < MOST_ENTRIES and others - mates or others",
        "others = others - mates"
    ),
    (
        "readers fit beside a writer",
        "if not writes(id) then return score('~w') <= now_ms and 1 or 0 end",
        "if not writes(id) then return 1 end"
    ),
    (
        "readers shut readers out",
        "if not writes(id) then return score('~w') <= now_ms and 1 or 0 end",
        "if not writes(id) then return live() == 0 and 1 or 0 end"
    ),
    (
        "a reader gets a token of its own",
        "return writes(id) and mint() or last_token()",
        "return mint()"
    ),
    (
        "writers share the last token",
        "return writes(id) and mint() or last_token()",
        "return last_token()"
    ),
    (
        "what a lost key left behind stays",
        "if type(stale) == 'number' and stale > 0 then redis.call('DEL', notes) end",
        ""
    ),
    (
        "an owner that writes writes with a new token",
        "token_of_writer(mates) or token_for(id))",
        "token_for(id))"
    ),
    (
        "an owner enters again before all is swept",
        "if #mates == 0 or unswept == 1 then",
        "if #mates == 0 then"
    ),
    (
        "nobody enters again",
        "if #mates == 0 or unswept == 1 then return false end",
        "do return false end"
    ),
    ("a reader writes beside other readers", "or live() == #mates", "or true"),
    ("a sole reader may not write", "or live() == #mates", ""),
    ("an owner has any number of holds", "if #mates >= MOST_ENTRIES then return false end", ""),
    // rwlock/acquire.lua
    (
        "a new reader finds what has ended",
        "if tonumber(first[2] or 0) <= now_ms then return false end",
        ""
    ),
    (
        "a new reader comes beside a writer",
        "if against[1] or against[2] then return false end",
        "if against[2] then return false end"
    ),
    (
        "a late copy reads during its cool-down",
        "if against[1] or against[2] then return false end",
        "if against[1] then return false end"
    ),
    ("a resent reader counts twice", "return not (known[1] or known[2])", "return not known[1]"),
    (
        "a newcomer passes the queue",
        "holds, notes, queue, queue, queue, gone, gone, gone)",
        "holds, notes, gone, gone, gone)"
    ),
    (
        "a new writer does not keep readers out",
        "redis.call('ZADD', holds, deadline, id, deadline, '~w')",
        "redis.call('ZADD', holds, deadline, id)"
    ),
    (
        "a resend without a note moves the deadline",
        "elseif redis.call('ZADD', holds, 'NX', deadline, id) == 0 then",
        "elseif redis.call('ZADD', holds, deadline, id) == 7 then"
    ),
    (
        "a longer reader does not extend the holds",
        "if there == 0 or redis.call('PTTL', holds) < lease_ms then",
        "if there == 0 then"
    ),
    (
        "a longer reader does not extend the notes",
        "if there == 0 or redis.call('PTTL', notes) < lease_ms then",
        "if there == 0 then"
    ),
    // rwlock/release.lua
    (
        "what has ended is released",
        "if not deadline or tonumber(deadline) <= now_ms or",
        "if not deadline or"
    ),
    (
        "a release passes over the queue",
        "or redis.call('EXISTS', queue) == 1 then return nil end",
        "then return nil end"
    ),
    (
        "a release ends the others",
        "if redis.call('ZCARD', holds) == alone and redis.call('HLEN', notes) == 2\n    and (share == 'r' or redis.call('ZSCORE', holds, '~w')) then",
        "if true then"
    ),
    (
        "a quick release is late",
        "late == '0' and at_least_ms == '0' and quickly()",
        "at_least_ms == '0' and quickly()"
    ),
    (
        "a quick release does not cool down",
        "late == '0' and at_least_ms == '0' and quickly()",
        "late == '0' and quickly()"
    ),
    // rwlock/exchange.lua
    (
        "an upgrade does not ask",
        "if writes(id) and not may_write() then return { 2, unswept } end",
        ""
    ),
    (
        "an upgrade beside what has ended is refused for good",
        "return { 2, unswept }",
        "return { 2, 0 }"
    ),
    ("an upgrade without a note is refused", "or (unswept == 0 and live() == 1)", ""),
    (
        "an upgrade begins a new lease",
        "minted, owner, note, deadline)\nend",
        "minted, owner, note, now_ms + 30000)\nend"
    ),
    ("an exchange begins anew", "since > 0 and since or now_ms, minted", "now_ms, minted"),
    ("an exchange leaves the old hold", "  remove({ old })\n", ""),
    ("a downgrade keeps readers out", "  ended(old)\n", ""),
    (
        "a downgrade lets nobody in",
        "return { 1, settle({}), token_of(id)",
        "return { 1, 0, token_of(id)"
    ),
    (
        "an exchange that was cancelled runs",
        "if is_gone(id) then return { 4 } end\n  if not holds_id(old)",
        "if not holds_id(old)"
    ),
    (
        "an exchange creates",
        "if not holds_id(old) then return { 0, settle({}), why_not_held(old) } end",
        "if not holds_id(old) then add(old, now_ms, '0', owner, note, now_ms + 1000) end"
    ),
    (
        "an upgrade keeps the reader's token",
        "  elseif not minted then\n    minted = mint()\n",
        "  elseif not minted then\n    minted = last_token()\n"
    ),
    (
        "an upgrade beside an own writer gets a new token",
        "  elseif not minted then\n    minted = mint()\n",
        "  else\n    minted = mint()\n"
    ),
    ("a downgraded reader forgets its token", "minted = token_of(old)", "minted = last_token()"),
    // rwlock/adopt.lua
    ("adopt takes both sides", "if writes(entry) == writes(id) then", "if true then"),
    ("adopt shortens", "latest = math.max(latest, holds_id(entry))", ""),
    ("adopt begins anew", "first = math.min(first, since_of(entry))", ""),
    ("adopt creates", "if #earlier == 0 then return { 0, 0, now_text } end", ""),
    ("adopt leaves the earlier holds", "  remove(earlier)\n", ""),
    (
        "adopt forgets the earlier holds",
        "gone, kept_until, entry, kept_until, 'adopted|' .. entry)",
        "gone, kept_until, 'adopted|' .. entry)"
    ),
    ("adopt does not tell", "if inbox then redis.pcall('PUBLISH', inbox, uuid .. ' 3') end", ""),
    (
        "adopt mints",
        "minted = tonumber(token_of(entry)) > tonumber(minted) and token_of(entry) or minted",
        "minted = mint()"
    ),
    (
        "adopt does not sweep",
        "read_hold()\nif not holds_id(id) then\n  if is_gone(id) then return { 4, now_text } end",
        "if not holds_id(id) then\n  if is_gone(id) then return { 4, now_text } end"
    ),
    // lib/holders.lua, lib/renew.lua, lib/force.lua
    ("the list shows the mark", "if string.find(id, '|', 1, true) then", "if true then"),
    (
        "renew revives what has ended",
        "if not deadline or tonumber(deadline) <= now_ms then",
        "if not deadline then"
    ),
    (
        "renew creates",
        "if not deadline or tonumber(deadline) <= now_ms then return 0, why(id) end",
        ""
    ),
    (
        "force does not mark",
        "redis.call('ZADD', gone, text(now_ms + mark_ms), 'forced|' .. id)",
        ""
    ),
    ("force does not end", "drop_entry(member, 0)\n      tell(id, '2')", "tell(id, '2')"),
    ("force does not tell", "drop_entry(member, 0)\n      tell(id, '2')", "drop_entry(member, 0)"),
    ("force leaves the cool-down", "or (cools(id) and '-' .. id)", ""),
    ("force marks the cool-down alone", "string.match(ids[i], '^%-?(.*)$')", "ids[i]"),
    (
        "force does not know its own copy",
        "elseif redis.call('ZSCORE', gone, 'forced|' .. id) then",
        "elseif false then"
    ),
    ("force lets nobody in", "return { count, settle({}) }", "return { count, 0 }"),
    ("a check does not see whose owner holds", "found[id] or known[i]", "found[id]"),
    // lib/settle.lua, lib/acquire.lua, lib/check.lua, lib/release.lua: what they do for readers and writers
    (
        "the bound of grants is not told",
        "    end\n  end\n  return 1\nend",
        "    end\n  end\n  return 0\nend"
    ),
    ("settle does not wait for the sweep", "if unswept == 1 then return 1 end", ""),
    (
        "one reader is let in at a time",
        "elseif grant(head, owner, note, callers, looks) then\n      granted = granted + 1",
        "elseif grant(head, owner, note, callers, looks) then\n      return 0"
    ),
    (
        "a grant that nobody heard stands",
        "announce(head, minted, ms) == 0",
        "announce(head, minted, ms) == -1"
    ),
    (
        "a waiter that leaves lets nobody in",
        "reply[2] = settle({})",
        "reply[2] = reply[1] == 4 and 0 or settle({})"
    ),
    (
        "who enters again from the queue lets nobody in",
        "      leave(id)\n      settle({})\n    end\n    return joined",
        "      leave(id)\n    end\n    return joined"
    ),
    (
        "who enters again stays in the queue",
        "      leave(id)\n      settle({})\n    end\n    return joined",
        "    end\n    return joined"
    ),
];
