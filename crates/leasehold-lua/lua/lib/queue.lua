-- The queue: zset id -> ticket, and beside it the hash id -> deadline_ms|owner|note; deadline_ms!until_ms|… of one that
-- looks for its grant until then. Needs: clock; locals queue, timeouts, gone, wait_ms.
-- Each waiter has its own absolute deadline; nobody's ticket or deadline is changed by another (I12). An id without
-- a deadline is dead. Both keys live as long as the latest deadline (I17).
-- An id is uuid|lease_ms|share|inbox: what a granter needs is in it. share = w (shuts all others out), r, or a weight.
local function split_id(id)
  local uuid, lease, share, inbox = string.match(id, '^([^|]*)|(%d+)|(%w+)|(.*)$')
  return uuid, tonumber(lease or 0), share, inbox
end

local function waiter(id)
  local value = redis.call('HGET', timeouts, id)
  local deadline, looks, owner, note = string.match(value or '', '^(%d+)!?(%d*)|([^|]*)|(.*)$')
  return tonumber(deadline or 0), owner, note, (tonumber(looks) or 0) > now_ms
end

-- Both keys live as long as whoever was refreshed first by this script, and that one stays in them until it settles.
local lives_on = false

-- What is written of those who hear no messages and look for their grants instead.
local looking = ''

-- Three values a waiter: id, owner, note.
local function refresh(...)
  local deadline, written = now_ms + wait_ms, { ... }
  local begin = text(deadline) .. looking .. '|'
  local fields = {}
  for i = 1, #written, 3 do
    fields[#fields + 1], fields[#fields + 2] = written[i], begin .. written[i + 1] .. '|' .. written[i + 2]
  end
  redis.call('HSET', timeouts, unpack(fields))
  if lives_on then return end
  if redis.call('PTTL', queue) < wait_ms then redis.call('PEXPIREAT', queue, text(deadline)) end
  if redis.call('PTTL', timeouts) < wait_ms then redis.call('PEXPIREAT', timeouts, text(deadline)) end
  lives_on = true
end

-- At its old ticket, or at the tail. Ticket = max(last + 1, server microseconds): it keeps its meaning when the hash
-- is lost. A ticket from the future is ignored.
local function enter(id, owner, note, ticket)
  local last = tonumber(redis.call('HGET', timeouts, '#') or 0)
  if ticket == 0 or ticket > math.max(last, now_us) then ticket = math.max(last + 1, now_us) end
  redis.call('ZADD', queue, text(ticket), id)
  redis.call('HSET', timeouts, '#', text(math.max(last, ticket)))
  refresh(id, owner, note)
  return ticket
end

local function leave(id)
  redis.call('HDEL', timeouts, id)
  return redis.call('ZREM', queue, id)
end

local function is_gone(id)
  local until_ms = redis.call('ZSCORE', gone, id)
  return until_ms and tonumber(until_ms) > now_ms
end
