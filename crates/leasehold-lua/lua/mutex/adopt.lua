--[[
Replaces all live entries of an owner by one of the calling process, with the same token, and tells those that had
them. Never creates.

KEYS[1]  holds     hash: the hold
KEYS[2]  gone      zset: id whose acquire may still arrive -> until, ms
ARGV[1]  id        text: uuid|lease_ms|share|inbox of the new entry
ARGV[2]  owner     text: whose hold is adopted
ARGV[3]  note      text: description of the new holder
ARGV[4]  lease_ms  number: length of the lease

returns {1, token, left_ms, now_us}   adopted
returns {0, why, now_us}              not held by that owner: 0 absent, 1 another holder
returns {4, now_us}                   cancelled before it arrived
]]
local holds, gone = KEYS[1], KEYS[2]
local id, owner, note, lease_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

--#include clock
--#include mutex

redis.call('ZREMRANGEBYRANK', gone, 0, -10001)
read_hold()
if not holds_id(id) then
  local until_ms = redis.call('ZSCORE', gone, id)
  if until_ms and tonumber(until_ms) > now_ms then return { 4, now_text } end
  if not may_reenter(id, owner) then return { 0, (hold.exists and not hold.cooling) and 1 or 0, now_text } end
  local earlier, latest, first = {}, hold.latest, now_ms
  for entry, _ in pairs(hold.entries) do
    earlier[#earlier + 1] = entry
    first = math.min(first, hold.since[entry])
  end
  redis.call('HDEL', holds, unpack(earlier))
  drop_expired()
  hold.entries, hold.live, hold.latest = {}, 0, 0
  -- A hold is never shortened: the new entry keeps the latest deadline of those it replaces.
  add_entry(id, first, note, math.max(latest, now_ms + lease_ms))
  -- The earlier guards are told; a message that is lost, or may not be sent, is made good by their next renewal. I6: a late
  -- copy of what made them finds the mark. It would join as an entry that nobody has, or take the hold from a later heir.
  for _, entry in ipairs(earlier) do
    redis.call('ZADD', gone, text(now_ms + 60000), entry)
    local uuid, inbox = string.match(entry, '^([^|]*)|%d+|%w+|(.*)$')
    if inbox then redis.pcall('PUBLISH', inbox, uuid .. ' 3') end
  end
  redis.call('PEXPIRE', gone, 60000)
end
return { 1, hold.token, hold.entries[id] - now_ms, now_text }
