--[[
Ends the hold that has the given token, whoever holds it, and tells its holder; another hold is left alone, so a
resend never ends the next one. Then the next waiter is granted.

KEYS[1]  holds     hash: the hold
KEYS[2]  queue     zset: waiting id -> ticket
KEYS[3]  timeouts  hash: waiting id -> deadline, owner, note
KEYS[4]  token     string: the last fencing token
KEYS[5]  gone      zset: id whose acquire may still arrive -> until, ms; forced|id and forced|token marks
ARGV[1]  forced    text: token of the hold to end
ARGV[2]  mark_ms   number: how long the mark of a forced end is kept
ARGV[3]  grant_ms  number: lease of a pushed grant
ARGV[4]  fence_ms  number: how long the token key is kept
ARGV[5]  floor     number: highest token this client has seen

returns {1, again}   ended, now or by an earlier copy of this call
returns {0, again}   not the hold of that token
]]
local holds, queue, timeouts, token, gone = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local forced, mark_ms, grant_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local fence_ms, floor = ARGV[4], tonumber(ARGV[5])
local wait_ms = 0

--#include clock
--#include token
--#include mutex
--#include queue
--#include settle

local function mark(member)
  redis.call('ZADD', gone, text(now_ms + mark_ms), 'forced|' .. member)
end

redis.call('ZREMRANGEBYRANK', gone, 0, -10001)
read_hold()
local code = 0
if hold.token == forced then
  code = 1
  mark(forced)
  for id, _ in pairs(hold.entries) do mark(id) end
  if redis.call('PTTL', gone) < mark_ms then redis.call('PEXPIRE', gone, mark_ms) end
  local told = hold.entries
  end_hold()
  for id, _ in pairs(told) do tell(id, '2') end
elseif redis.call('ZSCORE', gone, 'forced|' .. forced) then
  code = 1
end
return { code, settle({}) }
