--[[
Takes the lock, or enters its queue; for an id that was sent before it answers what is so now.

KEYS[1]   holds        hash: the hold
KEYS[2]   queue        zset: waiting id -> ticket
KEYS[3]   timeouts     hash: waiting id -> deadline, owner, note
KEYS[4]   token        string: the last fencing token
KEYS[5]   gone         zset: id whose acquire may still arrive -> until, ms
ARGV[1]   id           text: uuid|lease_ms|share|inbox
ARGV[2]   owner        text: who may re-enter
ARGV[3]   note         text: description of the holder, opaque here
ARGV[4]   lease_ms     number: length of the lease
ARGV[5]   mode         text: wait or try
ARGV[6]   max_waiters  number: bound of the queue, -1 for none
ARGV[7]   wait_ms      number: a waiter that stays silent so long is dead
ARGV[8]   check_ms     number: longest pause until the waiter asks again
ARGV[9]   grant_ms     number: lease of a pushed grant
ARGV[10]  fence_ms     number: how long the token key is kept
ARGV[11]  floor        number: highest token this client has seen

returns {1, token, left_ms, now_us}                       taken
returns {0, position, check_ms, ticket, again, now_us}    queued
returns {2, left_ms, again, now_us}                       busy (mode try)
returns {3, left_ms, again, now_us}                       the queue is full
returns {4, now_us}                                       cancelled before it arrived
returns {6, now_us}                                       the owner has too many entries
]]
local holds, queue, timeouts, token, gone = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, owner, note, lease_ms, mode = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local max_waiters, wait_ms, check_ms, grant_ms = ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local fence_ms, floor = ARGV[10], tonumber(ARGV[11])

--#include clock
--#include token

-- The usual case: free, nobody waits, nothing was cancelled.
if redis.call('EXISTS', holds, queue, gone) == 0 then
  local minted = mint()
  local deadline = text(now_ms + lease_ms)
  local since = string.sub(now_text, 1, -4) -- the same moment in milliseconds
  redis.call('HSET', holds, 'owner', owner, 'token', minted, id, deadline .. '|' .. since .. '|' .. note)
  -- I17: refused (a user without this right), the hold would never end.
  local ends = redis.pcall('PEXPIREAT', holds, deadline)
  if type(ends) == 'table' then
    redis.call('DEL', holds)
    return ends
  end
  return { 1, minted, lease_ms, now_text }
end

-- What the usual case did not need as numbers.
max_waiters, wait_ms, check_ms, grant_ms = tonumber(max_waiters), tonumber(wait_ms), tonumber(check_ms), tonumber(grant_ms)

--#include mutex
--#include queue
--#include settle
--#include acquire

return acquire()
