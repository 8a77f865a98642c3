--[[
Ends an acquisition in whatever state it is: a hold ends, a waiter leaves, neither changes nothing; then whatever now
fits is granted. The same script is release and cancel.

KEYS[1]   holds        zset: id -> deadline, ms; limit and used
KEYS[2]   queue        zset: waiting id -> ticket
KEYS[3]   timeouts     hash: waiting id -> deadline, owner, note
KEYS[4]   gone         zset: id whose acquire may still arrive -> until, ms
KEYS[5]   notes        hash: id -> since, owner, note
ARGV[1]   id           text: uuid|lease_ms|share|inbox
ARGV[2]   late         number: 1 if an acquire of this id may still arrive
ARGV[3]   at_least_ms  number: an earlier end becomes a cool-down until then, counted from the grant
ARGV[4]   grant_ms     number: lease of a pushed grant

returns {1, again}                                  released
returns {4, again, position, left_ms, since_ms, note, now_us}  left the queue; who holds meanwhile
returns {0, again, why}                             not held: 0 absent, 2 forced away
]]
local holds, queue, timeouts, gone, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, late, at_least_ms, grant_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local wait_ms = 0 -- nobody enters a queue here

--#include clock
--#include queue
--#include shares
--#include semaphore
--#include settle
--#include release

return release()
