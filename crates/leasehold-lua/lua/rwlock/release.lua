--[[
Ends an acquisition in whatever state it is: a hold ends, a waiter leaves, neither changes nothing; then whatever now
fits is granted. The same script is release and cancel.

KEYS[1]   holds        zset: id -> deadline, ms
KEYS[2]   queue        zset: waiting id -> ticket
KEYS[3]   timeouts     hash: waiting id -> deadline, owner, note
KEYS[4]   token        string: the last fencing token
KEYS[5]   gone         zset: id whose acquire may still arrive -> until, ms
KEYS[6]   notes        hash: id -> since, token, owner, note
ARGV[1]   id           text: uuid|lease_ms|share|inbox
ARGV[2]   late         number: 1 if an acquire of this id may still arrive
ARGV[3]   at_least_ms  number: an earlier end becomes a cool-down until then, counted from the grant
ARGV[4]   grant_ms     number: lease of a pushed grant
ARGV[5]   fence_ms     number: how long the token key is kept
ARGV[6]   floor        number: highest token this client has seen

returns {1, again}                                  released
returns {4, again, position, left_ms, since_ms, note, now_us}  left the queue; who holds meanwhile
returns {0, again, why}                             not held: 0 absent, 1 adopted by another, 2 forced away
]]
local holds, queue, timeouts, token, gone, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local id, late, at_least_ms, grant_ms, fence_ms, floor = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

--#include clock

-- The usual cases: nobody waits and nothing is in flight; it holds alone, or reads beside others and is its owner's only
-- hold. DEL and ZREM are refused by a replica and allowed at maxmemory. Anything else has changed nothing here.
local function quickly()
  local deadline = redis.call('ZSCORE', holds, id)
  if not deadline or tonumber(deadline) <= now_ms or redis.call('EXISTS', queue) == 1 then return nil end
  local _, _, share = string.find(id, '^[^|]*|%d+|(%w+)|')
  local alone = share == 'r' and 1 or 2 -- the writer's deadline stands beside it
  if redis.call('ZCARD', holds) == alone and redis.call('HLEN', notes) == 2
    and (share == 'r' or redis.call('ZSCORE', holds, '~w')) then
    redis.call('DEL', holds, notes)
    return { 1, 0 }
  end
  if share ~= 'r' then return nil end
  local owner = string.match(redis.call('HGET', notes, id) or '', '^%d+|%d+|([^|]*)|')
  if not owner or redis.call('HGET', notes, '=' .. owner) ~= cmsgpack.pack({ id }) then return nil end
  redis.call('ZREM', holds, id)
  redis.call('HDEL', notes, id, '=' .. owner)
  return { 1, 0 }
end

local done = late == '0' and at_least_ms == '0' and quickly()
if done then return done end

-- What the usual case did not need as numbers; nobody enters a queue here.
at_least_ms, grant_ms, floor = tonumber(at_least_ms), tonumber(grant_ms), tonumber(floor)
local wait_ms = 0

--#include token
--#include queue
--#include shares
--#include rwlock
--#include settle
--#include release

return release()
