--[[
Re-runs the waiting acquisitions of one process on one name: refreshes their deadlines, puts back those that were
purged, hands on what expired, and answers for each what is so now. Nothing depends on a message (I11).

KEYS[1]   holds        zset: id -> deadline, ms; limit and used
KEYS[2]   queue        zset: waiting id -> ticket
KEYS[3]   timeouts     hash: waiting id -> deadline, owner, note
KEYS[4]   gone         zset: id whose acquire may still arrive -> until, ms
KEYS[5]   notes        hash: id -> since, token, owner, note
ARGV[1]   wait_ms      number: a waiter that stays silent so long is dead
ARGV[2]   check_ms     number: longest pause until the next check
ARGV[3]   grant_ms     number: lease of a pushed grant
ARGV[4]   deaf         number: 1 = messages do not reach this process; it asks often
ARGV[5]   limit        number: the limit, if the server knows none
ARGV[6…]  waiting      four an acquisition: id, ticket (0 = to the tail), owner, note

returns {again, check_ms, now_us, answer…}   answer = {1, token, left_ms} taken, {0, position, ticket} queued, {4} cancelled, {5} never fits, {6} too many entries
]]
local holds, queue, timeouts, gone, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local wait_ms, check_ms, grant_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local deaf, limit, waiting = ARGV[4], tonumber(ARGV[5]), ARGV
local FIRST = 6

--#include clock
--#include queue
--#include shares
--#include semaphore
--#include settle
--#include check

set_up(limit)
return check(waiting, FIRST)
