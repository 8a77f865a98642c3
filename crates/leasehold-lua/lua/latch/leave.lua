--[[
Takes a process from among those that are told.

KEYS[1]  waiters   zset: uuid|inbox -> until when that process listens, ms
ARGV[1]  listener  text: uuid|inbox

returns {1}   it was there
returns {0}   it was not
]]
local waiters = KEYS[1]
local listener = ARGV[1]

if redis.call('ZREM', waiters, listener) == 1 then return { 1 } end
return { 0 }
