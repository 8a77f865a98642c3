--[[
Takes a permit, or enters the queue; for an id that was sent before it answers what is so now.

KEYS[1]   holds        zset: id -> deadline, ms; limit and used
KEYS[2]   queue        zset: waiting id -> ticket
KEYS[3]   timeouts     hash: waiting id -> deadline, owner, note
KEYS[4]   gone         zset: id whose acquire may still arrive -> until, ms
KEYS[5]   notes        hash: id -> since, owner, note
ARGV[1]   id           text: uuid|lease_ms|share|inbox
ARGV[2]   owner        text: whose hold it is
ARGV[3]   note         text: description of the holder, opaque here
ARGV[4]   lease_ms     number: length of the lease
ARGV[5]   mode         text: wait or try
ARGV[6]   max_waiters  number: bound of the queue, -1 for none
ARGV[7]   wait_ms      number: a waiter that stays silent so long is dead
ARGV[8]   check_ms     number: longest pause until the waiter asks again
ARGV[9]   grant_ms     number: lease of a pushed grant
ARGV[10]  limit        number: the limit, if the server knows none
ARGV[11]  strict       number: 1 = refuse where the server's limit differs

returns {1, token, left_ms, now_us}                       taken; token is 0
returns {0, position, check_ms, ticket, again, now_us}    queued
returns {2, left_ms, again, now_us}                       busy (mode try)
returns {3, left_ms, again, now_us}                       the queue is full
returns {4, now_us}                                       cancelled before it arrived
returns {5, now_us}                                       its weight is over the limit
returns {7, limit}                                        strict, and the server's limit differs
A last value more, the server's limit as text, where it differs and the call is not strict.
]]
local holds, queue, timeouts, gone, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, owner, note, lease_ms, mode = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local max_waiters, wait_ms, check_ms = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local grant_ms, limit, strict = tonumber(ARGV[9]), tonumber(ARGV[10]), ARGV[11]

--#include clock
--#include queue
--#include shares
--#include semaphore
--#include settle
--#include acquire

set_up(limit)
local found = score('#l')
if strict == '1' and found ~= limit and not holds_id(id) and not redis.call('ZSCORE', queue, id) then
  return { 7, found }
end
local reply = acquire()
if found ~= limit then reply[#reply + 1] = 'limit|' .. text(found) end
return reply
