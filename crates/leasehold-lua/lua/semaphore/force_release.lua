--[[
Ends the holds that are named, whoever has them, and tells their holders; others are left alone. Then whatever now fits
is granted.

KEYS[1]   holds        zset: id -> deadline, ms; limit and used
KEYS[2]   queue        zset: waiting id -> ticket
KEYS[3]   timeouts     hash: waiting id -> deadline, owner, note
KEYS[4]   gone         zset: id whose acquire may still arrive -> until, ms
KEYS[5]   notes        hash: id -> since, token, owner, note
ARGV[1]   mark_ms      number: how long the mark of a forced end is kept
ARGV[2]   grant_ms     number: lease of a pushed grant
ARGV[3…]  forced      one an element: id of a hold to end, or of its cool-down

returns {count, again}   so many of them were ended, now or by an earlier copy of this call
]]
local holds, queue, timeouts, gone, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local mark_ms, grant_ms = tonumber(ARGV[1]), tonumber(ARGV[2])
local forced = ARGV
local FIRST, wait_ms = 3, 0

--#include clock
--#include queue
--#include shares
--#include semaphore
--#include settle
--#include force

return force(forced, FIRST)
