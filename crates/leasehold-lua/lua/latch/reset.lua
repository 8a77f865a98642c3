--[[
Ends the given generation, whether it is open or not, and tells the processes that wait for it; another generation is
left alone, so a resend never ends the next one.

KEYS[1]  latch    hash: the latch
KEYS[2]  ids      zset: the call that armed, and who has counted down
KEYS[3]  waiters  zset: uuid|inbox -> until when that process listens, ms
ARGV[1]  meant    text: the generation to end

returns {1, again}   reset by this call
returns {2, again}   it was reset before, by another call or an earlier copy of this one
returns {0, 0}       another generation is armed, or none
]]
local latch, ids, waiters = KEYS[1], KEYS[2], KEYS[3]
local meant = ARGV[1]

--#include clock
--#include latch
--#include tell

-- A write that changes nothing: see count_down.
redis.call('ZREMRANGEBYRANK', ids, 0, -1000001)
read_latch()
local now_is = state()
if now_is == ABSENT or text(generation) ~= meant then return { 0, 0 } end
local code = 2
if now_is ~= RESET then
  code = 1
  redis.call('HSET', latch, 'over', '1')
  -- What may still arrive late is recognised so long; refused, the keys keep the ends that they have.
  end_in(KEPT_MS)
end
return { code, tell('2') }
