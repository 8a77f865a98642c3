-- Holds of which there may be many: the larger half of a kind. Needs: clock, queue; locals holds, notes, gone.
-- `holds` is a zset: id -> deadline_ms, so each hold has an end of its own (I13); beside it the hash `notes`:
-- id -> since_ms|token|owner|note, and =owner -> the owner's ids, packed. The hold is the zset's: without its note it
-- has lost its owner and its description, nothing else.
-- In a cool-down the hold goes on as `-id`: it takes room, and nobody holds it. Members without bars are the kind's own;
-- the scores of those that are numbers stay below LOWEST, where no deadline is.
-- The kind says the rest: `idle_ms` (how long the keys stay at least), `forget` (gives back what holds took),
-- `raised` (a hold lasts longer), `cools_beside` (an early end is a cool-down whatever else its owner holds), `cool` (it
-- becomes a cool-down; answers until when), `ended` (it is out).
local LOWEST, MOST_EXPIRED, MOST_ENTRIES = 1000000000, 256, 64
local unswept = 0
local idle_ms, forget, raised, cools_beside, cool, ended

local function score(member) return tonumber(redis.call('ZSCORE', holds, member) or 0) end

-- Its deadline, if it has not passed.
local function holds_id(id)
  local deadline = score(id)
  return deadline > now_ms and deadline or nil
end
local function cools(id) return holds_id('-' .. id) end
local function left_of(id) return score(id) - now_ms end

local function note_of(id)
  local value = redis.call('HGET', notes, id)
  local since, minted, owner, note = string.match(value or '', '^(%d+)|(%d+)|([^|]*)|(.*)$')
  return tonumber(since or 0), minted or '0', owner, note or ''
end
local function since_of(id)
  local since = note_of(id)
  return since
end

-- The owner's live holds.
local function entries_of(owner)
  local packed = owner and redis.call('HGET', notes, '=' .. owner)
  local live = {}
  for _, id in ipairs(packed and cmsgpack.unpack(packed) or {}) do
    if holds_id(id) then live[#live + 1] = id end
  end
  return live
end
local function keep_entries(owner, ids)
  if #ids == 0 then return redis.call('HDEL', notes, '=' .. owner) end
  redis.call('HSET', notes, '=' .. owner, cmsgpack.pack(ids))
end

-- I17: both keys live until then, and longer if they did.
local function lasts(deadline)
  if redis.call('PTTL', holds) < deadline - now_ms then redis.call('PEXPIREAT', holds, text(deadline)) end
  if redis.call('PTTL', notes) < deadline - now_ms then redis.call('PEXPIREAT', notes, text(deadline)) end
end

-- The note first: a key that is not ours refuses before anything is held. `…` what changes together with the hold.
local function add(id, since, minted, owner, note, deadline, ...)
  local mates = entries_of(owner)
  mates[#mates + 1] = id
  redis.call('HSET', notes, id, text(since) .. '|' .. minted .. '|' .. owner .. '|' .. note)
  keep_entries(owner, mates)
  redis.call('ZADD', holds, text(deadline), id, ...)
  lasts(math.max(deadline, now_ms + idle_ms))
  raised(id, deadline)
end

-- Moves a deadline upward, never downward (I4).
local function extend(id, deadline)
  if deadline <= score(id) then return end
  redis.call('ZADD', holds, text(deadline), id)
  lasts(math.max(deadline, now_ms + idle_ms))
  raised(id, deadline)
end

-- Out of the zset, the notes and the lists of their owners. Notes that are not ours refuse before anything is given
-- back: refused after that, the next call would give it back once more.
local function remove(ids)
  local values = redis.call('HMGET', notes, unpack(ids))
  redis.call('ZREM', holds, unpack(ids))
  forget(ids)
  redis.call('HDEL', notes, unpack(ids))
  local seen = {}
  for i = 1, #ids do
    local owner = string.match(values[i] or '', '^%d+|%d+|([^|]*)|')
    if owner and not seen[owner] then
      seen[owner] = true
      keep_entries(owner, entries_of(owner))
    end
  end
end

-- What ended by time leaves the zset, in bounded steps, before anything is granted: a clock that goes back cannot bring
-- it to life beside what came after.
local function read_hold()
  local ended = redis.call('ZRANGEBYSCORE', holds, text(LOWEST), text(now_ms), 'LIMIT', 0, MOST_EXPIRED)
  if #ended > 0 then remove(ended) end
  unswept = #ended == MOST_EXPIRED and 1 or 0
end

-- The hold leaves. Earlier than `at_least_ms` after its grant it becomes a cool-down until then: the last one of an owner.
-- From now where the clock went back behind the grant: a cool-down is never longer than it was asked for.
local function drop_entry(id, at_least_ms)
  local since, minted, owner, note = note_of(id)
  local cool_until = math.min(since, now_ms) + at_least_ms
  if cool_until > now_ms and (cools_beside(id) or #entries_of(owner) <= 1) then
    cool_until = cool(id, cool_until)
    -- Neither key is empty in between: it would forget its end, and the other one would outlive it.
    redis.call('ZADD', holds, text(cool_until), '-' .. id)
    redis.call('ZREM', holds, id)
    redis.call('HSET', notes, '-' .. id, text(since) .. '|' .. minted .. '||' .. note)
    redis.call('HDEL', notes, id)
    keep_entries(owner, entries_of(owner))
    lasts(cool_until)
  else
    remove({ id })
  end
  ended(id)
end

-- Nobody heard of a grant: it is undone.
local function give_back(id) drop_entry(id, 0) end

-- The first hold to end: the member and its deadline.
local function first_to_end()
  local first = redis.call('ZRANGEBYSCORE', holds, '(' .. text(now_ms), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return first[1], tonumber(first[2] or 0)
end

-- Milliseconds until that; 0 if nobody holds. A key of ours that is foreign raises before.
local function hold_left()
  local _, deadline = first_to_end()
  return math.max(deadline - now_ms, 0)
end

-- Since when somebody holds, and the note; for a waiter that leaves. One of its own process is named before others: so it
-- learns that it waited for itself. Whose process it is says the inbox in the id.
local MOST_ASKED = 64
local function who_holds(waiting)
  local _, _, _, inbox = split_id(waiting)
  local since, note = 0, ''
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', holds, '(' .. text(now_ms), '+inf', 'LIMIT', 0, MOST_ASKED)) do
    local _, _, _, other = split_id(id)
    if since == 0 or other == inbox then
      local began, _, _, description = note_of(id)
      if began > 0 then since, note = began, description end
      if began > 0 and other == inbox then break end
    end
  end
  return since, note
end

-- Those of these ids that hold or cool down.
local function held(ids)
  local members, found = {}, {}
  for i, id in ipairs(ids) do
    members[2 * i - 1], members[2 * i] = id, '-' .. id
  end
  local scores = redis.call('ZMSCORE', holds, unpack(members))
  for i, id in ipairs(ids) do found[id] = scores[2 * i - 1] or scores[2 * i] end
  return found
end

-- Why an id is not held: 0 absent, 1 adopted by another, 2 forced away (the marks stay a minute).
local function why_not_held(id)
  local marks = redis.call('ZMSCORE', gone, 'forced|' .. id, 'adopted|' .. id)
  return (marks[1] and 2) or (marks[2] and 1) or 0
end
