--[[
Replaces all live holds that an owner has of one side by one of the calling process, and tells those that had them. A
writer keeps its token. Never creates.

KEYS[1]  holds     zset: id -> deadline, ms
KEYS[2]  token     string: the last fencing token
KEYS[3]  gone      zset: id whose acquire may still arrive -> until, ms
KEYS[4]  notes     hash: id -> since, token, owner, note
ARGV[1]  id        text: uuid|lease_ms|share|inbox of the new hold; its share says which side
ARGV[2]  owner     text: whose holds are adopted
ARGV[3]  note      text: description of the new holder
ARGV[4]  lease_ms  number: length of the lease
ARGV[5]  fence_ms  number: how long the token key is kept
ARGV[6]  floor     number: highest token this client has seen

returns {1, token, left_ms, now_us}   adopted
returns {0, why, now_us}              that owner does not hold that side: 0 absent
returns {4, now_us}                   cancelled before it arrived
]]
local holds, token, gone, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, owner, note, lease_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local fence_ms, floor = ARGV[5], tonumber(ARGV[6])

--#include clock
--#include token
--#include queue
--#include shares
--#include rwlock

redis.call('ZREMRANGEBYRANK', gone, 0, -10001)
read_hold()
if not holds_id(id) then
  if is_gone(id) then return { 4, now_text } end
  local earlier, latest, first, minted = {}, now_ms + lease_ms, now_ms, writes(id) and '0' or last_token()
  for _, entry in ipairs(entries_of(owner)) do
    if writes(entry) == writes(id) then
      earlier[#earlier + 1] = entry
      -- A hold is never shortened: the new one keeps the latest deadline of those it replaces.
      latest = math.max(latest, holds_id(entry))
      first = math.min(first, since_of(entry))
      minted = tonumber(token_of(entry)) > tonumber(minted) and token_of(entry) or minted
    end
  end
  if #earlier == 0 then return { 0, 0, now_text } end
  remove(earlier)
  add(id, first, minted, owner, note, latest)
  -- The earlier guards are told; a message that is lost, or may not be sent, is made good by their next renewal. I6: a late
  -- copy of what made them finds the mark. It would join as an entry that nobody has, or take the hold from a later heir.
  -- Their own release, where it overtakes the news, finds the other mark.
  local kept_until = text(now_ms + 60000)
  for _, entry in ipairs(earlier) do
    redis.call('ZADD', gone, kept_until, entry, kept_until, 'adopted|' .. entry)
    local uuid, _, _, inbox = split_id(entry)
    if inbox then redis.pcall('PUBLISH', inbox, uuid .. ' 3') end
  end
  redis.call('PEXPIRE', gone, 60000)
end
return { 1, token_of(id), left_of(id), now_text }
