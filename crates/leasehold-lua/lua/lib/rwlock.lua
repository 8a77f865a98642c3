-- The holds of a read-write lock: the other half of the kind. Needs: clock, token, queue, shares.
-- The member ~w is the deadline of the last writer: while it has not passed, every hold is of one owner (I13). It sorts
-- behind the ids, so that a sweep that meets its bound takes the writer first: a clock that goes back cannot bring one to
-- life without the mark.
idle_ms = 0
function forget(_) end

local function writes(id)
  local _, _, share = split_id(id)
  return share == 'w'
end

local function live() return redis.call('ZCOUNT', holds, '(' .. text(now_ms), '+inf') end

function raised(id, deadline)
  if writes(id) and score('~w') < deadline then redis.call('ZADD', holds, text(deadline), '~w') end
end

-- Those that write or cool down from it, the last to end first: member, deadline. There are few where a writer is: all are
-- of one owner.
local MOST_BESIDE = 1000
local function writers()
  local now = '(' .. text(now_ms)
  local found = redis.call('ZRANGE', holds, '+inf', now, 'BYSCORE', 'REV', 'LIMIT', 0, MOST_BESIDE, 'WITHSCORES')
  local all = {}
  for i = 1, #found, 2 do
    if writes(found[i]) then all[#all + 1] = { found[i], tonumber(found[i + 1]) } end
  end
  return all
end

-- A writer's cool-down keeps others out, also while its owner reads on. The owner has one at the most: the newest takes
-- over from the one before, for else they would pile up.
function cools_beside(id) return writes(id) end
function cool(id, cool_until)
  for _, writer in ipairs(writes(id) and writers() or {}) do
    local member, deadline = unpack(writer)
    if string.sub(member, 1, 1) == '-' then
      redis.call('ZREM', holds, member)
      redis.call('HDEL', notes, member)
      cool_until = math.max(cool_until, deadline)
    end
  end
  return cool_until
end

-- The mark goes down to what is left of writers.
function ended(id)
  if not writes(id) then return end
  local last = writers()[1]
  if last then
    redis.call('ZADD', holds, text(last[2]), '~w')
  else
    redis.call('ZREM', holds, '~w')
  end
end

-- A writer that waited while its owner reads is in when the others have left: it does not wait for itself.
local function fits(id, owner)
  if not writes(id) then return score('~w') <= now_ms and 1 or 0 end
  local others = live()
  if others > 0 and owner then
    local mates = #entries_of(owner)
    others = mates < MOST_ENTRIES and others - mates or others
  end
  return others == 0 and 1 or 0
end

-- A reader is given the last writer's token: whatever it reads is not older than that.
local function last_token()
  local last = redis.call('GET', token) or '0'
  if not tonumber(last) then error('WRONGTYPE the fencing token key holds something else') end
  return last
end
local function token_for(id) return writes(id) and mint() or last_token() end
local function token_of(id)
  local _, minted = note_of(id)
  if minted == '0' then minted = last_token() end
  if minted == '0' and writes(id) then minted = mint() end
  return minted
end

-- Where nobody holds, notes are what a lost key left behind: nobody else would clear them away. As in the semaphore, a
-- DEL only of something.
local function take(id, owner, note, ms, minted)
  local stale = redis.call('EXISTS', holds) == 0 and redis.pcall('HLEN', notes)
  if type(stale) == 'number' and stale > 0 then redis.call('DEL', notes) end
  add(id, now_ms, minted, owner, note, now_ms + ms)
end

-- The token of those of these holds that write, if one does.
local function token_of_writer(mates)
  for _, mate in ipairs(mates) do
    if writes(mate) then return token_of(mate) end
  end
  return nil
end

-- Re-entry passes the queue: an owner that holds reads at any time, because no other owner's writer is there; it
-- writes if all holds are its own, as they are where it writes already or cools down from it. Not before all that ended
-- is swept: see read_hold.
local function may_reenter(id, owner)
  local mates = entries_of(owner)
  if #mates == 0 or unswept == 1 then return false end
  return not writes(id) or score('~w') > now_ms or live() == #mates
end

local function reenter(id, owner, note, ms)
  local mates = entries_of(owner)
  if #mates >= MOST_ENTRIES then return false end
  take(id, owner, note, ms, token_of_writer(mates) or token_for(id))
  return true
end

-- Those of these ids to which a check may have more to say than that they wait: who holds, and whose owner does.
local function unusual(ids, owners)
  local found, lists = held(ids), {}
  for i, owner in ipairs(owners) do lists[i] = '=' .. owner end
  local known = redis.call('HMGET', notes, unpack(lists))
  for i, id in ipairs(ids) do found[id] = found[id] or known[i] end
  return found
end
