--[[
Takes one waiter out of the queue, whoever it is, and tells it. It is named by ticket and trace, as the caller read
them: a resend, or a list that is no longer true, never hits another one. Then the next waiter is granted.

KEYS[1]  holds     hash: the hold
KEYS[2]  queue     zset: waiting id -> ticket
KEYS[3]  timeouts  hash: waiting id -> deadline, owner, note
KEYS[4]  token     string: the last fencing token
KEYS[5]  gone      zset: id whose acquire may still arrive -> until, ms; cancelled|ticket|trace marks
ARGV[1]  place     text: the waiter's ticket
ARGV[2]  trace     text: what its note begins with
ARGV[3]  mark_ms   number: how long it is remembered that it was cancelled
ARGV[4]  grant_ms  number: lease of a pushed grant
ARGV[5]  fence_ms  number: how long the token key is kept
ARGV[6]  floor     number: highest token this client has seen

returns {1, again}   cancelled, now or by an earlier copy of this call
returns {0, again}   no such waiter
]]
local holds, queue, timeouts, token, gone = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local place, trace, mark_ms, grant_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local fence_ms, floor = ARGV[5], tonumber(ARGV[6])
local wait_ms = 0

--#include clock
--#include token
--#include mutex
--#include queue
--#include settle

-- Neither a late copy of its acquire nor its next check brings it back.
local function mark(member)
  redis.call('ZADD', gone, text(now_ms + mark_ms), member)
end

local cancelled = 'cancelled|' .. place .. '|' .. trace

-- A ticket is one waiter's; two have the same only after the queue was lost, hence the bound.
local function named()
  for _, id in ipairs(redis.call('ZRANGE', queue, place, place, 'BYSCORE', 'LIMIT', 0, 16)) do
    local _, _, note = waiter(id)
    if note and string.sub(note, 1, #trace + 1) == trace .. '|' then return id end
  end
end

redis.call('ZREMRANGEBYRANK', gone, 0, -10001)
read_hold()
local id = named()
local code = 0
if id then
  code = 1
  mark(id)
  mark(cancelled)
  if redis.call('PTTL', gone) < mark_ms then redis.call('PEXPIRE', gone, mark_ms) end
  leave(id)
  tell(id, '6')
elseif redis.call('ZSCORE', gone, cancelled) then
  code = 1
end
local again = settle({})
return { code, again }
