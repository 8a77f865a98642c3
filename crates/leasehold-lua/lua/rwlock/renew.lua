--[[
Moves the deadlines of holds upward, many in one call, each on its own: one that is not held, or whose key is
foreign, does not touch the others. Never creates, never shortens (I4).

KEYS[1…]  keys      three an element: holds (zset), gone (zset), notes (hash)
ARGV[1…]  elements  two an element: id, lease_ms

returns {now_us, code, value, …}   an element: 1, left_ms renewed; 0, why not held (0 absent, 1 adopted by another, 2 forced away); 3, error text
]]
local keys, elements = KEYS, ARGV
local holds, gone, notes

--#include clock
--#include queue
--#include shares
--#include rwlock
--#include renew

-- As in release: READONLY on a replica instead of a false "not held"; at maxmemory the writes below stay allowed. A
-- foreign key is the trouble of its own element only.
local opening = redis.pcall('ZREMRANGEBYRANK', keys[2], 0, -10001)
if type(opening) == 'table' and not string.find(opening.err, 'WRONGTYPE') then return opening end

local reply = { now_text }
for i = 1, #elements, 2 do
  local at = (i - 1) / 2 * 3
  holds, gone, notes = keys[at + 1], keys[at + 2], keys[at + 3]
  reply[#reply + 1], reply[#reply + 2] = renew(elements[i], tonumber(elements[i + 1]))
end
return reply
