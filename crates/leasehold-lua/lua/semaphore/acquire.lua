--[[
Takes a permit, or enters the queue; for an id that was sent before it answers what is so now.

KEYS[1]   holds        zset: id -> deadline, ms; limit and used
KEYS[2]   queue        zset: waiting id -> ticket
KEYS[3]   timeouts     hash: waiting id -> deadline, owner, note
KEYS[4]   gone         zset: id whose acquire may still arrive -> until, ms
KEYS[5]   notes        hash: id -> since, token, owner, note
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

-- The usual case: it fits, nobody waits, nothing was cancelled, nothing has ended unseen, and the owner is new.
local found = redis.call('ZMSCORE', holds, id, '-' .. id, '#u', '#l')
local server = tonumber(found[4] or 0)
local sum = tonumber(found[3] or 0) + tonumber(string.match(id, '^[^|]*|%d+|(%d+)|'))
if not found[1] and not found[2] and sum <= server and (server == limit or strict == '0')
  and redis.call('EXISTS', queue, gone) == 0
  and redis.call('ZCOUNT', holds, 1000000000, text(now_ms)) == 0
  and redis.call('HEXISTS', notes, '=' .. owner) == 0 then
  local since = string.sub(now_text, 1, -4) -- the same moment in milliseconds
  redis.call('HSET', notes, id, since .. '|0|' .. owner .. '|' .. note, '=' .. owner, cmsgpack.pack({ id }))
  -- I17: both keys last as long as the hold, and at least a minute; a little more, so that it is seldom said again. Before
  -- the hold: refused (a user without this right), nothing is held.
  local least_ms = math.max(lease_ms, 60000)
  local ends = text(now_ms + least_ms + 15000)
  if redis.call('PTTL', holds) < least_ms then redis.call('PEXPIREAT', holds, ends) end
  if redis.call('PTTL', notes) < least_ms then redis.call('PEXPIREAT', notes, ends) end
  redis.call('ZADD', holds, text(now_ms + lease_ms), id, text(sum), '#u')
  local reply = { 1, '0', lease_ms, now_text }
  if server ~= limit then reply[5] = 'limit|' .. text(server) end
  return reply
end

--#include queue
--#include shares
--#include semaphore
--#include settle
--#include acquire

set_up(limit)
server = score('#l')
if strict == '1' and server ~= limit and not holds_id(id) and not redis.call('ZSCORE', queue, id) then
  return { 7, server }
end
local reply = acquire()
if server ~= limit then reply[#reply + 1] = 'limit|' .. text(server) end
return reply
