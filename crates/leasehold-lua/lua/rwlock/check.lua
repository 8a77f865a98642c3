--[[
Re-runs the waiting acquisitions of one process on one name: refreshes their deadlines, puts back those that were
purged, hands on what expired, and answers for each what is so now. Nothing depends on a message (I11).

KEYS[1]   holds        zset: id -> deadline, ms
KEYS[2]   queue        zset: waiting id -> ticket
KEYS[3]   timeouts     hash: waiting id -> deadline, owner, note
KEYS[4]   token        string: the last fencing token
KEYS[5]   gone         zset: id whose acquire may still arrive -> until, ms
KEYS[6]   notes        hash: id -> since, token, owner, note
ARGV[1]   wait_ms      number: a waiter that stays silent so long is dead
ARGV[2]   check_ms     number: longest pause until the next check
ARGV[3]   grant_ms     number: lease of a pushed grant
ARGV[4]   deaf         number: 1 = messages do not reach this process; it asks often
ARGV[5]   fence_ms     number: how long the token key is kept
ARGV[6]   floor        number: highest token this client has seen
ARGV[7…]  waiting      four an acquisition: id, ticket (0 = to the tail), owner, note

returns {again, check_ms, now_us, answer…}   answer = {1, token, left_ms} taken, {0, position, ticket} queued, {4} cancelled, {5} never fits, {6} too many entries
]]
local holds, queue, timeouts, token, gone, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local wait_ms, check_ms, grant_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local deaf, fence_ms, floor, waiting = ARGV[4], ARGV[5], tonumber(ARGV[6]), ARGV
local FIRST = 7

--#include clock
--#include token
--#include queue
--#include shares
--#include rwlock
--#include settle
--#include check

return check(waiting, FIRST)
