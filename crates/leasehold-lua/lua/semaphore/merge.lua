--[[
Makes one hold of two: the kept one has both weights and the later of both ends. Nothing becomes free, so nothing is
granted.

KEYS[1]  holds    zset: id -> deadline, ms; limit and used
KEYS[2]  gone     zset: id whose acquire may still arrive -> until, ms
KEYS[3]  notes    hash: id -> since, token, owner, note
ARGV[1]  kept     text: id of the hold that stays
ARGV[2]  merged   text: id of the hold that becomes a part of it
ARGV[3]  mark_ms  number: how long the end of that one is remembered

returns {1, weight, left_ms, now_us}   merged, now or by an earlier copy of this call
returns {0, which, why, now_us}        not held: 1 the kept one, 2 the other, 3 both after an earlier copy; 0 absent, 1 adopted by another, 2 forced away
]]
local holds, gone, notes = KEYS[1], KEYS[2], KEYS[3]
local kept, merged, mark_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

--#include clock
--#include queue
--#include shares
--#include semaphore

-- Only of a merge into this one: other ways to end leave a mark of the id alone (an adoption, a late cancel).
local made = 'merged|' .. kept .. '|' .. merged
local function merged_before() return redis.call('ZSCORE', gone, made) end

redis.call('ZREMRANGEBYRANK', gone, 0, -10001)
local deadline = holds_id(merged)
if not holds_id(kept) then
  local which = (not deadline and merged_before()) and 3 or 1
  return { 0, which, why_not_held(kept), now_text }
end
if deadline then
  local since, minted, owner, note = note_of(kept)
  local merged_since, _, merged_owner = note_of(merged)
  local weight = text(weight_of(kept) + weight_of(merged))
  redis.call('ZADD', holds, weight, '=' .. kept)
  redis.call('ZREM', holds, merged, '=' .. merged)
  -- The later of both grants: what is held at least so long is so for both.
  if owner and merged_since > since then
    redis.call('HSET', notes, kept, text(merged_since) .. '|' .. minted .. '|' .. owner .. '|' .. note)
  end
  redis.call('HDEL', notes, merged)
  if merged_owner then keep_entries(merged_owner, entries_of(merged_owner)) end
  extend(kept, deadline)
  -- A late copy of whatever made it finds the first mark, a copy of this call the second.
  local mark_until = text(now_ms + mark_ms)
  redis.call('ZADD', gone, mark_until, merged, mark_until, made)
  redis.call('PEXPIRE', gone, mark_ms)
elseif not merged_before() then
  return { 0, 2, why_not_held(merged), now_text }
end
return { 1, weight_of(kept), left_of(kept), now_text }
