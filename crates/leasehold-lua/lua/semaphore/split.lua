--[[
Makes two holds of one: the old one keeps the rest of its weight, the new one has the same end. Nothing becomes free,
so nothing is granted.

KEYS[1]  holds  zset: id -> deadline, ms; limit and used
KEYS[2]  gone   zset: id whose acquire may still arrive -> until, ms
KEYS[3]  notes  hash: id -> since, token, owner, note
ARGV[1]  old    text: id of the hold to split
ARGV[2]  id     text: uuid|lease_ms|share|inbox of the new hold; its share is what is split off
ARGV[3]  owner  text: whose the new hold is
ARGV[4]  note   text: description of its holder, opaque here

returns {1, left_ms, now_us}   split, now or by an earlier copy of this call
returns {0, why, now_us}       the old one is not held: 0 absent, 1 adopted by another, 2 forced away
returns {2, weight, now_us}    nothing would be left of it; it has this weight
returns {4, now_us}            cancelled before this call arrived, or ended since
]]
local holds, gone, notes = KEYS[1], KEYS[2], KEYS[3]
local old, id, owner, note = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

--#include clock
--#include queue
--#include shares
--#include semaphore

redis.call('ZREMRANGEBYRANK', gone, 0, -10001)
if not holds_id(id) then
  -- One that was there and has ended is in the sum still: it is not made once more.
  if is_gone(id) or cools(id) or redis.call('ZSCORE', holds, id) then return { 4, now_text } end
  local deadline = holds_id(old)
  if not deadline then return { 0, why_not_held(old), now_text } end
  local weight, part = weight_of(old), weight_of(id)
  if part >= weight then return { 2, weight, now_text } end
  add(id, since_of(old), '0', owner, note, deadline, text(weight - part), '=' .. old)
end
return { 1, left_of(id), now_text }
