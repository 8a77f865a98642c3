--[[
Ends the holds that are named, whoever has them, and tells their holders; others are left alone. Then whatever now fits
is granted.

KEYS[1]   holds        zset: id -> deadline, ms
KEYS[2]   queue        zset: waiting id -> ticket
KEYS[3]   timeouts     hash: waiting id -> deadline, owner, note
KEYS[4]   token        string: the last fencing token
KEYS[5]   gone         zset: id whose acquire may still arrive -> until, ms
KEYS[6]   notes        hash: id -> since, token, owner, note
ARGV[1]   mark_ms      number: how long the mark of a forced end is kept
ARGV[2]   grant_ms     number: lease of a pushed grant
ARGV[3]   fence_ms     number: how long the token key is kept
ARGV[4]   floor        number: highest token this client has seen
ARGV[5…]  forced      one an element: id of a hold to end, or of its cool-down

returns {count, again}   so many of them were ended, now or by an earlier copy of this call
]]
local holds, queue, timeouts, token, gone, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local mark_ms, grant_ms = tonumber(ARGV[1]), tonumber(ARGV[2])
local fence_ms, floor, forced = ARGV[3], tonumber(ARGV[4]), ARGV
local FIRST, wait_ms = 5, 0

--#include clock
--#include token
--#include queue
--#include shares
--#include rwlock
--#include settle
--#include force

return force(forced, FIRST)
