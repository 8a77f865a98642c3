--[[
Says who holds, and how long the queue is. What ended by time is cleared away, so that the numbers are true.

KEYS[1]  holds  zset: id -> deadline, ms; limit and used
KEYS[2]  queue  zset: waiting id -> ticket
KEYS[3]  gone   zset: id whose acquire may still arrive -> until, ms
KEYS[4]  notes  hash: id -> since, token, owner, note
ARGV[1]  most   number: how many holds are listed at the most

returns {again, now_us, waiters, used, limit, value…}   four values a hold: id, weight, deadline_ms, since_ms|token|owner|note
]]
local holds, queue, gone, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local most = tonumber(ARGV[1])

--#include clock
--#include queue
--#include shares
--#include semaphore
--#include holders

redis.call('ZREMRANGEBYRANK', gone, 0, -10001)
read_hold()
local reply = { unswept, now_text, redis.call('ZCARD', queue), score('#u'), score('#l') }
for _, value in ipairs(list(most, weight_of)) do reply[#reply + 1] = value end
return reply
