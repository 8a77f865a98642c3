--[[
Takes one side of the lock, or enters the queue; for an id that was sent before it answers what is so now.

KEYS[1]   holds        zset: id -> deadline, ms
KEYS[2]   queue        zset: waiting id -> ticket
KEYS[3]   timeouts     hash: waiting id -> deadline, owner, note
KEYS[4]   token        string: the last fencing token
KEYS[5]   gone         zset: id whose acquire may still arrive -> until, ms
KEYS[6]   notes        hash: id -> since, token, owner, note
ARGV[1]   id           text: uuid|lease_ms|share|inbox
ARGV[2]   owner        text: whose hold it is
ARGV[3]   note         text: description of the holder, opaque here
ARGV[4]   lease_ms     number: length of the lease
ARGV[5]   mode         text: wait or try
ARGV[6]   max_waiters  number: bound of the queue, -1 for none
ARGV[7]   wait_ms      number: a waiter that stays silent so long is dead
ARGV[8]   check_ms     number: longest pause until the waiter asks again
ARGV[9]   grant_ms     number: lease of a pushed grant
ARGV[10]  fence_ms     number: how long the token key is kept
ARGV[11]  floor        number: highest token this client has seen

returns {1, token, left_ms, now_us}                       taken; a reader is given the last writer's token
returns {0, position, check_ms, ticket, again, now_us}    queued
returns {2, left_ms, again, now_us}                       busy (mode try)
returns {3, left_ms, again, now_us}                       the queue is full
returns {4, now_us}                                       cancelled before it arrived
returns {6, now_us}                                       the owner has too many entries
]]
local holds, queue, timeouts, token, gone, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local id, owner, note, lease_ms, mode = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local max_waiters, wait_ms, check_ms = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local grant_ms, fence_ms, floor = tonumber(ARGV[9]), ARGV[10], tonumber(ARGV[11])

--#include clock
--#include token
--#include queue
--#include shares
--#include rwlock
--#include settle
--#include acquire

return acquire()
