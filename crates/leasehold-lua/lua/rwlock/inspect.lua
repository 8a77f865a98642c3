--[[
Says who holds, and how long the queue is. Reads only.

KEYS[1]  holds  zset: id -> deadline, ms
KEYS[2]  queue  zset: waiting id -> ticket
KEYS[3]  token  string: the last fencing token
KEYS[4]  notes  hash: id -> since, token, owner, note
ARGV[1]  most   number: how many holds are listed at the most

returns {now_us, waiters, token, ends_ms, value…}   ends_ms: of the last hold, 0 if there is none; four values a hold: id, weight, deadline_ms, since_ms|token|owner|note
]]
local holds, queue, token, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local most = tonumber(ARGV[1])

--#include clock
--#include queue
--#include shares
--#include rwlock
--#include holders

local ends_ms = tonumber(redis.call('ZRANGE', holds, -1, -1, 'WITHSCORES')[2] or 0)
local reply = { now_text, redis.call('ZCARD', queue), last_token(), text(ends_ms > now_ms and ends_ms or 0) }
for _, value in ipairs(list(most, function(_) return 0 end)) do reply[#reply + 1] = value end
return reply
