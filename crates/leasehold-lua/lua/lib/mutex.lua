-- The hold of a mutex, a kind. Needs: clock, and the token to grant; locals holds, gone.
-- A hash: owner, token, in a cool-down `cooling`, and one field an acquisition: deadline_ms|since_ms|note.
-- I4, I6: an acquisition is an entry of its own, so a resend finds itself and never counts twice.
-- The key ends with its latest entry (PEXPIREAT, the same absolute time), never before.
local hold
local unswept = 0 -- a hold ends as a whole: nothing to sweep in steps

local function no_hold()
  return { entries = {}, since = {}, notes = {}, live = 0, latest = 0, expired = {}, exists = false }
end

local function read_hold()
  hold = no_hold()
  local fields = redis.call('HGETALL', holds)
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    hold.exists = true
    if field == 'owner' or field == 'token' or field == 'cooling' then
      hold[field] = value
    else
      local deadline, since, note = string.match(value, '^(%d+)|(%d+)|(.*)$')
      deadline = tonumber(deadline)
      if deadline and deadline > now_ms then
        hold.entries[field], hold.since[field], hold.notes[field] = deadline, tonumber(since), note
        hold.live = hold.live + 1
        if deadline > hold.latest then hold.latest, hold.last = deadline, field end
      elseif deadline then
        hold.expired[#hold.expired + 1] = field
      end
    end
  end
end

-- In a cool-down the entry stays to say who it was, but nobody holds.
local function holds_id(id) return hold.entries[id] and not hold.cooling end
local function cools(id) return hold.cooling == id end
local function left_of(id) return hold.entries[id] - now_ms end
local function token_of(_) return hold.token end

local function fits(_) return hold.exists and 0 or 1 end
local function token_for(_) return mint() end

-- Milliseconds until the hold ends by itself; a hold without expiry (not ours) says the most that Lua carries well.
local function hold_left()
  local left = redis.call('PTTL', holds)
  if left == -1 then return 86400000 end
  return math.max(left, 0)
end

-- `…` further fields that are written with the entry.
local function add_entry(id, since, note, deadline, ...)
  redis.call('HSET', holds, id, text(deadline) .. '|' .. text(since) .. '|' .. note, ...)
  hold.entries[id], hold.since[id], hold.notes[id] = deadline, since, note
  hold.live = hold.live + 1
  if deadline > hold.latest then
    hold.latest, hold.last = deadline, id
    redis.call('PEXPIREAT', holds, text(deadline))
  end
end

-- A new hold; there was none.
local function take(id, owner, note, ms, minted)
  hold = no_hold()
  hold.exists, hold.owner, hold.token = true, owner, minted
  add_entry(id, now_ms, note, now_ms + ms, 'owner', owner, 'token', minted)
end

local function end_hold()
  redis.call('DEL', holds)
  hold = no_hold()
end

-- Nobody heard of a grant: it is undone.
local function give_back(_) end_hold() end

-- Since when the holder holds, and its note; for those who wait.
local function who_holds(_)
  local holder = hold.last
  return holder and hold.since[holder] or 0, holder and hold.notes[holder] or ''
end

-- The entry leaves; with the last live one the hold ends. Earlier than `at_least_ms` after the grant it cools down until
-- then; from now where the clock went back behind the grant: never longer than it was asked for.
local function drop_entry(id, at_least_ms)
  local cool_until = math.min(hold.since[id], now_ms) + at_least_ms
  if hold.live == 1 and cool_until > now_ms then
    redis.call('HSET', holds, 'cooling', id)
    redis.call('PEXPIREAT', holds, text(cool_until))
    hold.cooling = id
    return
  end
  if hold.live <= 1 then return end_hold() end
  redis.call('HDEL', holds, id)
  hold.entries[id] = nil
  hold.live, hold.latest, hold.last = hold.live - 1, 0, nil
  for other, deadline in pairs(hold.entries) do
    if deadline > hold.latest then hold.latest, hold.last = deadline, other end
  end
  redis.call('PEXPIREAT', holds, text(hold.latest))
end

-- What ended by time leaves the hash, so that a clock that goes back cannot bring it to life beside what came after.
local function drop_expired()
  if #hold.expired == 0 then return end
  redis.call('HDEL', holds, unpack(hold.expired))
  hold.expired = {}
end

-- Re-entry: the owner's further acquisition stands beside the first, with the same token and its own deadline.
local MOST_ENTRIES = 64
local function may_reenter(_, owner)
  return hold.exists and hold.owner == owner and not hold.cooling and hold.live > 0
end
local function reenter(id, _, note, ms)
  if hold.live >= MOST_ENTRIES then return false end
  drop_expired()
  add_entry(id, now_ms, note, now_ms + ms)
  return true
end

-- Those of these ids to which a check may have more to say than that they wait.
local function unusual(ids, owners)
  local found = {}
  for i, id in ipairs(ids) do found[id] = holds_id(id) or cools(id) or may_reenter(id, owners[i]) end
  return found
end

-- Why an id is not held: 0 absent, 1 somebody else holds, 2 forced away (the mark stays a minute). Whoever is told so has
-- ended: what stands of it does not come to life again when the clock goes back.
local function why_not_held(id)
  if not hold.cooling then drop_expired() end
  if redis.call('ZSCORE', gone, 'forced|' .. id) then return 2 end
  return (hold.exists and not hold.cooling) and 1 or 0
end
