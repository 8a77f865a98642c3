--[[
Arms the latch, unless it is armed: from then on so many have to count down. One that is open counts as armed until it
is reset or ends.

KEYS[1]  latch     hash: the latch
KEYS[2]  ids       zset: the call that armed, and who has counted down
ARGV[1]  call_id   text: names this call, for its resends
ARGV[2]  wanted    number: how many have to count down
ARGV[3]  lasts_ms  number: it ends so long after the last count

returns {1, generation}   armed, by this call or an earlier copy of it
returns {0, generation}   it was armed
]]
local latch, ids = KEYS[1], KEYS[2]
local call_id, wanted, lasts_ms = ARGV[1], ARGV[2], ARGV[3]

--#include clock
--#include latch

read_latch()
local armed_as = redis.call('ZSCORE', ids, call_id)
if armed_as or state() < RESET then
  -- A write that changes nothing: on a replica it answers READONLY instead of what was so once. Not before the others:
  -- at maxmemory it would switch their refusal off.
  redis.call('ZREMRANGEBYRANK', ids, 0, -1000001)
  if armed_as then return { 1, text(tonumber(armed_as)) } end
  return { 0, text(generation) }
end

-- Above every generation and every count before it, also where the clock went back.
local last = redis.call('ZRANGE', ids, -1, -1, 'WITHSCORES')
generation = math.max(now_us, (generation or 0) + 1, tonumber(last[2] or 0) + 1)
local fresh = text(generation)
redis.call('ZADD', ids, fresh, call_id)
-- Before there is a latch: whether keys may be given an end at all.
local refused = end_in(tonumber(lasts_ms))
if not refused then
  local set = redis.pcall('HSET', latch, 'generation', fresh, 'count', wanted, 'left', wanted, 'expires_ms', lasts_ms, 'over', '0')
  refused = type(set) == 'table' and set or end_in(tonumber(lasts_ms))
end
if refused then
  redis.call('ZREM', ids, call_id)
  return refused
end
sweep()
return { 1, fresh }
