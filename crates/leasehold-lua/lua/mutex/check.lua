--[[
Re-runs the waiting acquisitions of one process on one name: refreshes their deadlines, puts back those that were
purged, hands on what expired, and answers for each what is so now. Nothing depends on a message (I11).

KEYS[1]   holds      hash: the hold
KEYS[2]   queue      zset: waiting id -> ticket
KEYS[3]   timeouts   hash: waiting id -> deadline, owner, note
KEYS[4]   token      string: the last fencing token
KEYS[5]   gone       zset: id whose acquire may still arrive -> until, ms
ARGV[1]   wait_ms    number: a waiter that stays silent so long is dead
ARGV[2]   check_ms   number: longest pause until the next check
ARGV[3]   grant_ms   number: lease of a pushed grant
ARGV[4]   fence_ms   number: how long the token key is kept
ARGV[5]   floor      number: highest token this client has seen
ARGV[6…]  waiting    four an acquisition: id, ticket (0 = to the tail), owner, note

returns {again, check_ms, now_us, answer…}   answer = {1, token, left_ms} taken, {0, position, ticket} queued, {4} cancelled, {6} too many entries
]]
local holds, queue, timeouts, token, gone = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local wait_ms, check_ms, grant_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local fence_ms, floor, waiting = ARGV[4], tonumber(ARGV[5]), ARGV
local FIRST, WIDTH = 6, 4

--#include clock
--#include token
--#include mutex
--#include queue
--#include settle

-- The id is in the queue after it, unless it holds, was cancelled, or its owner holds and it joins as an entry.
local function attend(id, ticket, owner, note)
  if holds_id(id) then return nil end
  if is_gone(id) or hold.cooling == id then return { 4 } end
  local known = redis.call('ZSCORE', queue, id)
  if may_reenter(owner) then
    local _, lease_ms = split_id(id)
    if not reenter(id, note, lease_ms) then
      leave(id)
      return { 6 }
    end
    if known then leave(id) end
  elseif known then
    refresh(id, owner, note)
  else
    enter(id, owner, note, ticket)
  end
  return nil
end

local function answer(id)
  if holds_id(id) then return { 1, hold.token, hold.entries[id] - now_ms } end
  return { 0, redis.call('ZRANK', queue, id), text(tonumber(redis.call('ZSCORE', queue, id))) }
end

read_hold()
local callers, refusals = {}, {}
for i = FIRST, #waiting, WIDTH do
  local id = waiting[i]
  refusals[id] = attend(id, tonumber(waiting[i + 1]), waiting[i + 2], waiting[i + 3])
  if not refusals[id] then callers[id] = true end
end
local again = settle(callers)
local reply = { again, math.max(1, math.min(check_ms, hold_left())), now_text }
for i = FIRST, #waiting, WIDTH do
  local id = waiting[i]
  reply[#reply + 1] = refusals[id] or answer(id)
end
return reply
