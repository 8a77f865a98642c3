--[[
Ends an acquisition in whatever state it is: a hold ends, a waiter leaves, neither changes nothing; then whatever now
fits is granted. The same script is release and cancel.

KEYS[1]   holds        zset: id -> deadline, ms; limit and used
KEYS[2]   queue        zset: waiting id -> ticket
KEYS[3]   timeouts     hash: waiting id -> deadline, owner, note
KEYS[4]   gone         zset: id whose acquire may still arrive -> until, ms
KEYS[5]   notes        hash: id -> since, token, owner, note
ARGV[1]   id           text: uuid|lease_ms|share|inbox
ARGV[2]   late         number: 1 if an acquire of this id may still arrive
ARGV[3]   at_least_ms  number: an earlier end becomes a cool-down until then, counted from the grant
ARGV[4]   grant_ms     number: lease of a pushed grant

returns {1, again}                                  released
returns {4, again, position, left_ms, since_ms, note, now_us}  left the queue; who holds meanwhile
returns {0, again, why}                             not held: 0 absent, 1 adopted by another, 2 forced away
]]
local holds, queue, timeouts, gone, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, late, at_least_ms, grant_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

--#include clock

-- The usual case: a live hold, the only one of its owner, nobody waits, nothing is in flight. ZREM is refused by a
-- replica; after it ZADD is allowed at maxmemory.
if late == '0' and at_least_ms == '0' and redis.call('EXISTS', queue) == 0 then
  local found = redis.call('ZMSCORE', holds, id, '=' .. id, '#u')
  local about = found[1] and tonumber(found[1]) > now_ms and redis.call('HGET', notes, id)
  local owner = about and string.match(about, '^%d+|%d+|([^|]*)|')
  if owner and redis.call('HGET', notes, '=' .. owner) == cmsgpack.pack({ id }) then
    local weight = tonumber(found[2] or string.match(id, '^[^|]*|%d+|(%d+)|'))
    redis.call('ZREM', holds, id, '=' .. id)
    redis.call('ZADD', holds, text(tonumber(found[3]) - weight), '#u')
    redis.call('HDEL', notes, id, '=' .. owner)
    return { 1, 0 }
  end
end

-- What the usual case did not need as numbers; nobody enters a queue here.
at_least_ms, grant_ms = tonumber(at_least_ms), tonumber(grant_ms)
local wait_ms = 0

--#include queue
--#include shares
--#include semaphore
--#include settle
--#include release

return release()
