--[[
Says who holds, and how long the queue is. Reads only.

KEYS[1]  holds  zset: id -> deadline, ms
KEYS[2]  queue  zset: waiting id -> ticket
KEYS[3]  token  string: the last fencing token
KEYS[4]  notes  hash: id -> since, token, owner, note
ARGV[1]  most   number: how many holds are listed at the most

returns {again, now_us, waiters, token, value…}   four values a hold: id, weight, deadline_ms, since_ms|token|owner|note
]]
local holds, queue, token, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local most = tonumber(ARGV[1])

--#include clock
--#include queue
--#include shares
--#include rwlock
--#include holders

local reply = { unswept, now_text, redis.call('ZCARD', queue), last_token() }
for _, value in ipairs(list(most, function(_) return 0 end)) do reply[#reply + 1] = value end
return reply
