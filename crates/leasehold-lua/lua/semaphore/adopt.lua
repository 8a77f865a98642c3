--[[
Replaces all live holds of an owner by one of the calling process, with their weights together, and tells those that
had them. Never creates.

KEYS[1]  holds     zset: id -> deadline, ms; limit and used
KEYS[2]  gone      zset: id whose acquire may still arrive -> until, ms
KEYS[3]  notes     hash: id -> since, token, owner, note
ARGV[1]  id        text: uuid|lease_ms|share|inbox of the new hold; its share says nothing
ARGV[2]  owner     text: whose holds are adopted
ARGV[3]  note      text: description of the new holder
ARGV[4]  lease_ms  number: length of the lease
ARGV[5]  mark_ms   number: how long the ends of the earlier ones are remembered

returns {1, token, left_ms, now_us, weight}   adopted, now or by an earlier copy of this call; token is 0
returns {0, why, now_us}                      not held by that owner: 0 absent
returns {4, now_us}                           cancelled before it arrived, or ended since
]]
local holds, gone, notes = KEYS[1], KEYS[2], KEYS[3]
local id, owner, note, lease_ms, mark_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

--#include clock
--#include queue
--#include shares
--#include semaphore

-- The earlier one leaves; its guard is told. A message that is lost, or may not be sent, is made good by its next
-- renewal. A late copy of its acquire finds the one mark, its own release the other.
local function replaced(entry)
  redis.call('ZREM', holds, entry, '=' .. entry)
  redis.call('HDEL', notes, entry)
  local kept_until = text(now_ms + mark_ms)
  redis.call('ZADD', gone, kept_until, entry, kept_until, 'adopted|' .. entry)
  redis.call('PEXPIRE', gone, mark_ms)
  local uuid, _, _, inbox = split_id(entry)
  if inbox then redis.pcall('PUBLISH', inbox, uuid .. ' 3') end
end

redis.call('ZREMRANGEBYRANK', gone, 0, -10001)
if not holds_id(id) then
  -- One that was there and has ended is in the sum still: it is not made once more.
  if is_gone(id) or cools(id) or redis.call('ZSCORE', holds, id) then return { 4, now_text } end
  local earlier = entries_of(owner)
  if #earlier == 0 then return { 0, 0, now_text } end
  local weight, first, latest = 0, now_ms, now_ms + lease_ms
  for _, entry in ipairs(earlier) do
    local since = since_of(entry)
    weight, latest = weight + weight_of(entry), math.max(latest, score(entry))
    if since > 0 then first = math.min(first, since) end
  end
  -- A hold is never shortened: the heir keeps the latest end of those that it replaces.
  add(id, first, '0', owner, note, latest, text(weight), '=' .. id)
  for _, entry in ipairs(earlier) do replaced(entry) end
  keep_entries(owner, { id })
end
return { 1, '0', left_of(id), now_text, weight_of(id) }
