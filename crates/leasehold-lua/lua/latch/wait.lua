--[[
Looks, and while the latch is not open enters the process's inbox among those that are told: in one call, so nothing
that happens after the look is missed. Sent again it is the process's sign of life, and finds what a lost push would
have told (I11).

KEYS[1]  latch     hash: the latch
KEYS[2]  ids       zset: the call that armed, and who has counted down
KEYS[3]  waiters   zset: uuid|inbox -> until when that process listens, ms
ARGV[1]  listener  text: uuid|inbox
ARGV[2]  wait_ms   number: a process that stays silent so long is not told
ARGV[3]  check_ms  number: longest pause until it looks again

returns {0, generation, check_ms}   armed; it will be told
returns {1, generation, 0}          open
returns {2, generation, 0}          reset, and not armed again
returns {3, 0, 0}                   not armed
]]
local latch, ids, waiters = KEYS[1], KEYS[2], KEYS[3]
local listener, wait_ms, check_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

--#include clock
--#include latch

-- A write that changes nothing: see count_down. Whoever waits is served at maxmemory too; waiters are as few as processes.
redis.call('ZREMRANGEBYRANK', waiters, 0, -100001)
read_latch()
local now_is = state()
if now_is ~= WAITS then
  redis.call('ZREM', waiters, listener)
  if now_is == OPEN then return { 1, text(generation), 0 } end
  if now_is == RESET then return { 2, text(generation), 0 } end
  return { 3, 0, 0 }
end

redis.call('ZADD', waiters, text(now_ms + wait_ms), listener)
if redis.call('PTTL', waiters) < wait_ms then
  local refused = redis.pcall('PEXPIREAT', waiters, text(now_ms + wait_ms))
  if type(refused) == 'table' then
    redis.call('ZREM', waiters, listener)
    return refused
  end
end
-- Processes that died leave, a few at each call.
local first = redis.call('ZRANGE', waiters, 0, MOST_SWEPT - 1, 'WITHSCORES')
local dead = 0
for i = 2, #first, 2 do
  if tonumber(first[i]) <= now_ms then dead = dead + 1 end
end
if dead > 0 then redis.call('ZREMRANGEBYRANK', waiters, 0, dead - 1) end
-- When it ends by itself somebody has to look.
local ends_ms = redis.call('PTTL', latch)
if ends_ms >= 0 then check_ms = math.max(1, math.min(check_ms, ends_ms)) end
return { 0, text(generation), check_ms }
