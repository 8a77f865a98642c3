-- The holds of a read-write lock: the other half of the kind. Needs: clock, token, queue, shares.
-- The member #w is the deadline of the last writer: while it has not passed, every hold is of one owner (I13).
idle_ms = 0
function forget(_) end
function cool(_) end

local function writes(id)
  local _, _, share = split_id(id)
  return share == 'w'
end

local function live() return redis.call('ZCOUNT', holds, '(' .. text(now_ms), '+inf') end

function raised(id, deadline)
  if writes(id) and score('#w') < deadline then redis.call('ZADD', holds, text(deadline), '#w') end
end

-- Without its note a writer's owner is not known, and readers wait until the member has passed by itself.
function ended(id, owner, latest)
  if not writes(id) then return end
  for _, mate in ipairs(entries_of(owner)) do
    if writes(mate) then latest = math.max(latest, score(mate)) end
  end
  if latest > now_ms then
    redis.call('ZADD', holds, text(latest), '#w')
  elseif owner or live() == 1 then
    redis.call('ZREM', holds, '#w')
  end
end

local function fits(id)
  if writes(id) then return live() == 0 and 1 or 0 end
  return score('#w') <= now_ms and 1 or 0
end

-- A reader is given the last writer's token: whatever it reads is not older than that.
local function last_token() return redis.call('GET', token) or '0' end
local function token_for(id) return writes(id) and mint() or last_token() end
local function token_of(id)
  local _, minted = note_of(id)
  if minted == '0' then minted = last_token() end
  if minted == '0' and writes(id) then minted = mint() end
  return minted
end

local function take(id, owner, note, ms, minted)
  add(id, now_ms, minted, owner, note, now_ms + ms)
end

-- Re-entry passes the queue: an owner that holds reads at any time, because no other owner's writer is there; it
-- writes if it writes already, or if all holds are its own.
local function may_reenter(id, owner)
  local mates = entries_of(owner)
  if #mates == 0 then return false end
  if not writes(id) then return true end
  for _, mate in ipairs(mates) do
    if writes(mate) then return true end
  end
  return live() == #mates
end

local function reenter(id, owner, note, ms)
  local mates = entries_of(owner)
  if #mates >= MOST_ENTRIES then return false end
  local minted
  for _, mate in ipairs(mates) do
    if writes(mate) then minted = token_of(mate) end
  end
  take(id, owner, note, ms, minted or token_for(id))
  return true
end
