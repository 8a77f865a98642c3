--[[
Ends a hold of one side and begins one of the other in the same step: the lock is held all the time. A writer becomes a
reader with the same deadline, and readers that wait are let in. A reader becomes a writer, past those that wait, only
if nobody else holds.

KEYS[1]  holds     zset: id -> deadline, ms
KEYS[2]  queue     zset: waiting id -> ticket
KEYS[3]  timeouts  hash: waiting id -> deadline, owner, note
KEYS[4]  token     string: the last fencing token
KEYS[5]  gone      zset: id whose acquire may still arrive -> until, ms
KEYS[6]  notes     hash: id -> since, token, owner, note
ARGV[1]  old       text: id of the hold to end
ARGV[2]  id        text: uuid|lease_ms|share|inbox of the hold to begin
ARGV[3]  owner     text: whose holds both are
ARGV[4]  note      text: description of the holder, opaque here
ARGV[5]  grant_ms  number: lease of a pushed grant
ARGV[6]  fence_ms  number: how long the token key is kept
ARGV[7]  floor     number: highest token this client has seen

returns {1, again, token, left_ms, now_us}   the new one holds, now or since an earlier copy of this call
returns {0, again, why}                      the old one did not hold: 0 absent, 1 adopted by another, 2 forced away
returns {2, again}                           somebody else holds, or more has ended than one call clears away; no hold was changed
returns {4}                                  the new one was cancelled before this call arrived; nothing was changed
]]
local holds, queue, timeouts, token, gone, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local old, id, owner, note = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local grant_ms, fence_ms, floor = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])
local wait_ms = 0 -- nobody enters a queue here

--#include clock
--#include token
--#include queue
--#include shares
--#include rwlock
--#include settle

-- A hold whose note was lost is its owner's only if it is the only one.
local function may_write() return may_reenter(id, owner) or (unswept == 0 and live() == 1) end

local function exchange()
  local deadline = holds_id(old)
  local since = note_of(old)
  -- May fail on a foreign key: before anything is changed.
  local minted = token_of_writer(entries_of(owner))
  if not writes(id) then
    minted = token_of(old) -- its own: the token key may have been forgotten while it wrote
  elseif not minted then
    minted = mint()
  end
  remove({ old })
  ended(old)
  add(id, since > 0 and since or now_ms, minted, owner, note, deadline)
end

redis.call('ZREMRANGEBYRANK', gone, 0, -10001)
read_hold()
if not holds_id(id) then
  if is_gone(id) then return { 4 } end
  if not holds_id(old) then return { 0, settle({}), why_not_held(old) } end
  if writes(id) and not may_write() then return { 2, unswept } end
  exchange()
end
return { 1, settle({}), token_of(id), left_of(id), now_text }
