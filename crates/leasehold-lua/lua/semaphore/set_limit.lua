--[[
Sets the limit, then grants whatever now fits. A lower one revokes nothing: until the permits that are out fit it,
nothing is granted.

KEYS[1]  holds     zset: id -> deadline, ms; limit and used
KEYS[2]  queue     zset: waiting id -> ticket
KEYS[3]  timeouts  hash: waiting id -> deadline, owner, note
KEYS[4]  gone      zset: id whose acquire may still arrive -> until, ms
KEYS[5]  notes     hash: id -> since, token, owner, note
ARGV[1]  limit     number: the new limit
ARGV[2]  keep_ms   number: how long it is kept without any use
ARGV[3]  grant_ms  number: lease of a pushed grant

returns {again, now_us}   it is set
]]
local holds, queue, timeouts, gone, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local limit, keep_ms, grant_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local wait_ms = 0 -- nobody enters a queue here

--#include clock
--#include queue
--#include shares
--#include semaphore
--#include settle

redis.call('ZREMRANGEBYRANK', gone, 0, -10001)
read_hold()
set_up(limit)
redis.call('ZADD', holds, text(limit), '#l')
if redis.call('PTTL', holds) < keep_ms then redis.call('PEXPIREAT', holds, text(now_ms + keep_ms)) end
return { settle({}), now_text }
