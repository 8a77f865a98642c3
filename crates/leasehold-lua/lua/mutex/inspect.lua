--[[
Says who holds the lock and how long the queue is. Reads only.

KEYS[1]  holds  hash: the hold
KEYS[2]  queue  zset: waiting id -> ticket

returns {state, left_ms, token, length, now_us, value…}   state 0 free, 1 held, 2 cooling down, 3 foreign; a value an entry: deadline_ms|since_ms|note
]]
local holds, queue = KEYS[1], KEYS[2]

--#include clock
--#include mutex

read_hold()
local state = 0
if hold.cooling then state = 2 elseif hold.live > 0 then state = 1 elseif hold.exists then state = 3 end
local reply = { state, hold.exists and hold_left() or 0, hold.token or '0', redis.call('ZCARD', queue), now_text }
for id, deadline in pairs(hold.entries) do
  reply[#reply + 1] = text(deadline) .. '|' .. text(hold.since[id]) .. '|' .. hold.notes[id]
end
return reply
