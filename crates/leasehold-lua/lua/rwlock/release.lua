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
returns {0, again, why}                             not held: 0 absent, 2 forced away
]]
local holds, queue, timeouts, token, gone, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local id, late, at_least_ms, grant_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local fence_ms, floor = ARGV[5], tonumber(ARGV[6])
local wait_ms = 0 -- nobody enters a queue here

--#include clock
--#include token
--#include queue
--#include shares
--#include rwlock
--#include settle
--#include release

return release()
