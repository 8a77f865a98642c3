--[[
Lists the first waiters. Reads only.

KEYS[1]  queue     zset: waiting id -> ticket
KEYS[2]  timeouts  hash: waiting id -> deadline, owner, note
ARGV[1]  most      number: how many at the most

returns {now_us, length, ticket, deadline_ms, note, …}   three a waiter, first to be granted first
]]
local queue, timeouts = KEYS[1], KEYS[2]
local most = tonumber(ARGV[1])

--#include clock

-- As a range, 0 … -1 would be everybody.
local found = most > 0 and redis.call('ZRANGE', queue, 0, most - 1, 'WITHSCORES') or {}
local reply = { now_text, redis.call('ZCARD', queue) }
for i = 1, #found, 2 do
  local value = redis.call('HGET', timeouts, found[i])
  local deadline, _, note = string.match(value or '', '^(%d+)!?%d*|([^|]*)|(.*)$')
  reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = text(tonumber(found[i + 1])), deadline or '0', note or ''
end
return reply
