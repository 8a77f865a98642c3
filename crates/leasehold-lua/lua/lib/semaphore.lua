-- The permits of a semaphore: the other half of the kind. Needs: clock, queue, shares.
-- One key holds everything that has to agree (I14): #u is what is used, #l the limit, =id a weight that was changed after
-- the grant (split, merged); any other permit has the weight in its id. #u changes only together with a permit.
idle_ms = 60000
function raised(_, _) end
function ended(_) end
function cools_beside(_) return false end

local function weight_of(id)
  local changed = redis.call('ZSCORE', holds, '=' .. id)
  local _, _, share = split_id(id)
  return tonumber(changed or share) or 0
end

function forget(ids)
  local changed, freed = {}, 0
  for i, id in ipairs(ids) do changed[i] = '=' .. id end
  local weights = redis.call('ZMSCORE', holds, unpack(changed))
  for i, id in ipairs(ids) do
    local _, _, share = split_id(id)
    freed = freed + (tonumber(weights[i] or share) or 0)
  end
  redis.call('ZREM', holds, unpack(changed))
  redis.call('ZADD', holds, text(score('#u') - freed), '#u')
end

function cool(id, cool_until)
  redis.call('ZADD', holds, text(weight_of(id)), '=-' .. id)
  redis.call('ZREM', holds, '=' .. id)
  return cool_until
end

-- The limit is the server's: the first use sets it, later ones only keep it. Where it was lost the permits were lost
-- with it, and nobody would clear their notes away. Only if there are some: a DEL of nothing is a write too, and would
-- switch off the refusal of what comes after it at maxmemory.
local function set_up(limit)
  if redis.call('ZSCORE', holds, '#l') then return end
  local stale = redis.pcall('HLEN', notes)
  if type(stale) == 'number' and stale > 0 then redis.call('DEL', notes) end
  redis.call('ZADD', holds, text(limit), '#l')
  lasts(now_ms + idle_ms)
end

local function fits(id)
  local limit, weight = score('#l'), weight_of(id)
  if limit == 0 then return 0 end -- lost with its key: whoever comes next, or the check, brings it back
  if weight > limit then return -1 end
  return score('#u') + weight <= limit and 1 or 0
end

local function token_for(_) return '0' end
local function token_of(_) return '0' end

local function take(id, owner, note, ms, minted)
  add(id, now_ms, minted, owner, note, now_ms + ms, text(score('#u') + weight_of(id)), '#u')
end

-- A permit is never entered again: two of one owner are two permits.
local function may_reenter(_, _) return false end
local function reenter(_, _, _, _) return false end

-- Those of these ids to which a check may have more to say than that they wait: who holds, and who never fits.
local function unusual(ids, _)
  local found, limit = held(ids), score('#l')
  for _, id in ipairs(ids) do
    local _, _, weight = split_id(id)
    found[id] = found[id] or (tonumber(weight) or 0) > limit
  end
  return found
end
