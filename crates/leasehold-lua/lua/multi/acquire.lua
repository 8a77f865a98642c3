--[[
Takes several objects at once: all of them, if each can be taken and nobody waits for any, or none (I16).

KEYS[1…]   keys      five an element: holds, queue, token, gone, notes
ARGV[1]    fence_ms  number: how long the token keys are kept
ARGV[2]    floor     number: highest token this client has seen
ARGV[3…]   elements  six an element: kind, id, owner, note, lease_ms, limit (0 = none)

returns {1, now_us, token, left_ms, …}   all are held, now or since an earlier copy of this call; two values an element
returns {2, which, left_ms}              that element is held or waited for; nothing was taken
returns {3, which}                       of an earlier copy of this call only a part is held still
returns {4, which}                       that element was cancelled before this call arrived
returns {5, which}                       that element's weight is over its limit
]]
local keys = KEYS
local fence_ms, floor, elements = ARGV[1], tonumber(ARGV[2]), ARGV
local holds, queue, timeouts, token, gone, notes
local FIRST, WIDTH, KEYED = 3, 6, 5
local wait_ms = 0 -- nobody enters a queue here

--#include clock
--#include token
--#include queue

-- The kinds, each in a scope of its own: they use the same names. All look at the keys of the element at hand.
local kinds = {}
do
--#include mutex
  kinds.mutex = {
    read_hold = read_hold, holds_id = holds_id, cools = cools, fits = fits, may_reenter = may_reenter,
    reenter = reenter, take = take, token_for = token_for, token_of = token_of, left_of = left_of, hold_left = hold_left,
    swept = function() return true end, set_up = function(_) end,
  }
  kinds.fair = kinds.mutex
end
do
--#include shares
--#include rwlock
  kinds.rwlock = {
    read_hold = read_hold, holds_id = holds_id, cools = cools, fits = fits, may_reenter = may_reenter,
    reenter = reenter, take = take, token_for = token_for, token_of = token_of, left_of = left_of, hold_left = hold_left,
    swept = function() return unswept == 0 end, set_up = function(_) end,
  }
end
do
--#include shares
--#include semaphore
  kinds.semaphore = {
    read_hold = read_hold, holds_id = holds_id, cools = cools, fits = fits, may_reenter = may_reenter,
    reenter = reenter, take = take, token_for = token_for, token_of = token_of, left_of = left_of, hold_left = hold_left,
    swept = function() return unswept == 0 end, set_up = set_up,
  }
end

local function each(visit)
  local count = (#elements - FIRST + 1) / WIDTH
  for which = 0, count - 1 do
    local at, argument = which * KEYED, FIRST + which * WIDTH
    holds, queue, token = keys[at + 1], keys[at + 2], keys[at + 3]
    gone, notes = keys[at + 4], keys[at + 5]
    local kind = kinds[elements[argument]]
    kind.read_hold()
    local answer = visit(which, kind, elements[argument + 1], argument)
    if answer then return answer end
  end
  return nil
end

-- Whether an element is held already, or could be taken now; anything else ends the call.
local held, free = 0, 0
local function look(which, kind, id, argument)
  local owner, limit = elements[argument + 2], tonumber(elements[argument + 5])
  if kind.holds_id(id) then
    held = held + 1
    return nil
  end
  if is_gone(id) or kind.cools(id) then return { 4, which } end
  if limit > 0 then kind.set_up(limit) end
  if kind.may_reenter(id, owner) then
    free = free + 1
    return nil
  end
  local room = kind.fits(id)
  if room < 0 then return { 5, which } end
  if room == 0 or not kind.swept() or redis.call('EXISTS', queue) == 1 then
    return { 2, which, math.max(1, kind.hold_left()) }
  end
  free = free + 1
  return nil
end

local refusal = each(look)
if refusal then return refusal end
if held > 0 and free > 0 then return { 3, 0 } end

local reply = { 1, now_text }
local function take_it(_, kind, id, argument)
  local owner, note, lease_ms = elements[argument + 2], elements[argument + 3], tonumber(elements[argument + 4])
  if not kind.holds_id(id) then
    if kind.may_reenter(id, owner) then
      kind.reenter(id, owner, note, lease_ms)
    else
      kind.take(id, owner, note, lease_ms, kind.token_for(id))
    end
  end
  reply[#reply + 1], reply[#reply + 2] = kind.token_of(id), kind.left_of(id)
  return nil
end
each(take_it)
return reply
