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
local max_waiters, wait_ms, check_ms, grant_ms = ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local fence_ms, floor = ARGV[10], tonumber(ARGV[11])

--#include clock
--#include token

local reads = string.find(id, '^[^|]*|%d+|r|')

-- No writer holds, what has ended is swept, and neither id nor owner is known. An id that cools down was released: this is
-- a late copy.
local function beside_readers()
  local first = redis.call('ZRANGE', holds, 0, 0, 'WITHSCORES')
  if tonumber(first[2] or 0) <= now_ms then return false end
  local against = redis.call('ZMSCORE', holds, '~w', '-' .. id)
  if against[1] or against[2] then return false end
  local known = redis.call('HMGET', notes, id, '=' .. owner)
  return not (known[1] or known[2])
end

-- The usual cases: it is free, or one more reader comes to readers. Anything else has changed nothing here.
local function quickly()
  -- Nobody waits and nothing was cancelled: a key that is named three times counts three times.
  local there = redis.call('EXISTS', holds, notes, queue, queue, queue, gone, gone, gone)
  if there ~= 0 and not (reads and there == 2 and beside_readers()) then return nil end
  local minted = reads and (redis.call('GET', token) or '0') or mint()
  if not tonumber(minted) then return nil end
  local deadline = text(now_ms + lease_ms)
  if not reads then
    redis.call('ZADD', holds, deadline, id, deadline, '~w')
  elseif redis.call('ZADD', holds, 'NX', deadline, id) == 0 then
    return nil -- held, and its note was lost
  end
  local since = string.sub(now_text, 1, -4) -- the same moment in milliseconds
  local about = since .. '|' .. minted .. '|' .. owner .. '|' .. note
  redis.call('HSET', notes, id, about, '=' .. owner, cmsgpack.pack({ id }))
  -- I17: refused (a user without this right), the hold would never end.
  local refused
  if there == 0 or redis.call('PTTL', holds) < lease_ms then refused = redis.pcall('PEXPIREAT', holds, deadline) end
  if there == 0 or redis.call('PTTL', notes) < lease_ms then refused = redis.pcall('PEXPIREAT', notes, deadline) end
  if type(refused) == 'table' then
    redis.call('ZREM', holds, id, '~w')
    redis.call('HDEL', notes, id, '=' .. owner)
    return refused
  end
  return { 1, minted, lease_ms, now_text }
end

local done = quickly()
if done then return done end

-- What the usual case did not need as numbers.
max_waiters, wait_ms, check_ms, grant_ms = tonumber(max_waiters), tonumber(wait_ms), tonumber(check_ms), tonumber(grant_ms)

--#include queue
--#include shares
--#include rwlock
--#include settle
--#include acquire

return acquire()
