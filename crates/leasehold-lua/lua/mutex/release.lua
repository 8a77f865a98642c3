--[[
Ends an acquisition in whatever state it is: a hold ends, a waiter leaves, neither changes nothing; then the next
waiter is granted. The same script is release and cancel.

KEYS[1]  holds        hash: the hold
KEYS[2]  queue        zset: waiting id -> ticket
KEYS[3]  timeouts     hash: waiting id -> deadline, owner, note
KEYS[4]  token        string: the last fencing token
KEYS[5]  gone         zset: id whose acquire may still arrive -> until, ms
ARGV[1]  id           text: uuid|lease_ms|share|inbox
ARGV[2]  late         number: 1 if an acquire of this id may still arrive
ARGV[3]  at_least_ms  number: an earlier end becomes a cool-down until then, counted from the grant
ARGV[4]  grant_ms     number: lease of a pushed grant
ARGV[5]  fence_ms     number: how long the token key is kept
ARGV[6]  floor        number: highest token this client has seen

returns {1, again}                                  released
returns {4, again, position, left_ms, since_ms, note, now_us}  left the queue; who holds meanwhile
returns {0, again, why}                             not held: 0 absent, 1 another holder, 2 forced away
]]
local holds, queue, timeouts, token, gone = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, late, at_least_ms, grant_ms, fence_ms, floor = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

-- The usual case: the only entry (owner, token and itself), nobody waits, nothing is in flight. DEL is refused by a
-- replica and allowed at maxmemory.
if late == '0' and at_least_ms == '0' and redis.call('HLEN', holds) == 3
  and redis.call('HEXISTS', holds, id) == 1 and redis.call('EXISTS', queue) == 0 then
  redis.call('DEL', holds)
  return { 1, 0 }
end

-- What the usual case did not need as numbers; nobody enters a queue here.
at_least_ms, grant_ms, floor = tonumber(at_least_ms), tonumber(grant_ms), tonumber(floor)
local wait_ms = 0

--#include clock
--#include token
--#include mutex
--#include queue
--#include settle
--#include release

return release()
