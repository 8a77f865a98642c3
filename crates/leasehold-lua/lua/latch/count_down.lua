--[[
Counts down by one for an id: once in a generation, however often it is sent. At zero the latch is open, and the
processes that wait are told; at zero nothing is counted any more.

KEYS[1]  latch    hash: the latch
KEYS[2]  ids      zset: the call that armed, and who has counted down
KEYS[3]  waiters  zset: uuid|inbox -> until when that process listens, ms
ARGV[1]  meant    text: the generation that this call is meant for
ARGV[2]  id       text: who counts down

returns {1, left, again}   counted, by this call or an earlier copy of it; so many were left then
returns {0, generation}    not counted: another generation is armed
returns {2, generation}    not counted: it was reset
returns {3}                not counted: it is not armed
]]
local latch, ids, waiters = KEYS[1], KEYS[2], KEYS[3]
local meant, id = ARGV[1], ARGV[2]

--#include clock
--#include latch
--#include tell

-- A write that changes nothing: on a replica it answers READONLY, and at maxmemory it switches the refusal of later
-- writes off: a count frees more than it takes. It also bounds the zset.
redis.call('ZREMRANGEBYRANK', ids, 0, -1000001)
read_latch()
local now_is = state()
if now_is == ABSENT then return { 3 } end
if now_is == RESET then return { 2, text(generation) } end
if text(generation) ~= meant then return { 0, text(generation) } end

local answer = 0
local counted_as = tonumber(redis.call('ZSCORE', ids, id) or 0)
if counted_as > generation then
  answer = count - (counted_as - generation)
elseif left > 0 then
  -- The id first: counted without it, a resend would count again (I6, I15). Refused the second, the first is undone.
  redis.call('ZADD', ids, text(generation + count - left + 1), id)
  local set = redis.pcall('HSET', latch, 'left', text(left - 1))
  local refused = type(set) == 'table' and set or end_in(expires_ms)
  if refused then
    redis.pcall('HSET', latch, 'left', text(left))
    redis.call('ZREM', ids, id)
    return refused
  end
  left = left - 1
  answer = left
  sweep()
end
return { 1, answer, left == 0 and tell('1') or 0 }
