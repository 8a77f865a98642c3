--[[
Moves the deadlines of holds upward, many in one call, each on its own: one that is not held, or whose key is
foreign, does not touch the others. Never creates, never shortens (I4).

KEYS[1…]  keys      two an element: holds (hash), gone (zset)
ARGV[1…]  elements  two an element: id, lease_ms

returns {now_us, code, value, …}   an element: 1, left_ms renewed; 0, why not held (0 absent, 1 another holder, 2 forced away); 3, error text
]]
local keys, elements = KEYS, ARGV

--#include clock

-- As in release: READONLY on a replica instead of a false "not held"; at maxmemory the writes below stay allowed. A
-- foreign key is the trouble of its own element only.
local opening = redis.pcall('ZREMRANGEBYRANK', keys[2], 0, -10001)
if type(opening) == 'table' and not string.find(opening.err, 'WRONGTYPE') then return opening end

local function why_not_held(holds, gone, id, cooling)
  local forced = redis.pcall('ZSCORE', gone, 'forced|' .. id)
  if forced and not forced.err then return 2 end
  return (not cooling and redis.call('EXISTS', holds) == 1) and 1 or 0
end

local function renew(holds, gone, id, lease_ms)
  local found = redis.pcall('HMGET', holds, id, 'cooling')
  if found.err then return 3, found.err end
  local deadline, rest = string.match(found[1] or '', '^(%d+)(|.*)$')
  deadline = tonumber(deadline)
  if not deadline or deadline <= now_ms or found[2] then return 0, why_not_held(holds, gone, id, found[2]) end
  local wanted = now_ms + lease_ms
  if wanted > deadline then
    redis.call('HSET', holds, id, text(wanted) .. rest)
    if redis.call('PTTL', holds) < lease_ms then redis.call('PEXPIREAT', holds, text(wanted)) end
    deadline = wanted
  end
  return 1, deadline - now_ms
end

local reply = { now_text }
for i = 1, #elements, 2 do
  reply[#reply + 1], reply[#reply + 2] = renew(keys[i], keys[i + 1], elements[i], tonumber(elements[i + 1]))
end
return reply
