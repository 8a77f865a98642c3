--[[
Says how the latch is. Changes nothing.

KEYS[1]  latch  hash: the latch
KEYS[2]  ids    zset: the call that armed, and who has counted down

returns {0, generation, left}   armed
returns {1, generation, 0}      open
returns {2, generation, 0}      reset, and not armed again
returns {3, 0, 0}               not armed
]]
local latch, ids = KEYS[1], KEYS[2]

--#include clock
--#include latch

-- A write that changes nothing: see count_down. What a call goes by is not what a replica has kept.
redis.call('ZREMRANGEBYRANK', ids, 0, -1000001)
read_latch()
local now_is = state()
if now_is == WAITS then return { 0, text(generation), left } end
if now_is == OPEN then return { 1, text(generation), 0 } end
if now_is == RESET then return { 2, text(generation), 0 } end
return { 3, 0, 0 }
