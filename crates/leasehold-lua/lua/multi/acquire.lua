--[[
Takes several objects at once: all of them, if each can be taken and nobody waits for any, or none (I16).

KEYS[1…]   keys      five an element: holds, queue, token, gone, notes
ARGV[1]    fence_ms  number: how long the token keys are kept
ARGV[2]    floor     number: highest token this client has seen
ARGV[3…]   elements  six an element: kind, id, owner, note, lease_ms, settings (of a semaphore: limit,strict)

returns {1, now_us, token, left_ms, limit, …}   all are held, now or since an earlier copy of this call; three an element
returns {2, which, left_ms, again}              that element is held or waited for
returns {3, which}                              of what an earlier copy of this call took, that element is held no more
returns {4, which}                              that element was cancelled before this call arrived
returns {5, which}                              that element's weight is over its limit
returns {6, which}                              that element's owner has as many entries as a hold may have
returns {7, which, limit}                       that element is strict, and the server's limit differs
Nothing is taken by a call that returns anything but the first; an earlier copy of it may have taken some.
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
    check = function() end,
    crowded = function(_) return hold.live >= MOST_ENTRIES end,
    unswept = function() return 0 end,
    limit = function(_) return 0 end,
  }
  kinds.fair = kinds.mutex
end
do
--#include shares
--#include rwlock
  kinds.rwlock = {
    read_hold = read_hold, holds_id = holds_id, cools = cools, fits = fits, may_reenter = may_reenter,
    reenter = reenter, take = take, token_for = token_for, token_of = token_of, left_of = left_of, hold_left = hold_left,
    check = function()
      last_token()
      redis.call('HLEN', notes)
    end,
    crowded = function(owner) return #entries_of(owner) >= MOST_ENTRIES end,
    unswept = function() return unswept end,
    limit = function(_) return 0 end,
  }
end
do
--#include shares
--#include semaphore
  kinds.semaphore = {
    read_hold = read_hold, holds_id = holds_id, cools = cools, fits = fits, may_reenter = may_reenter,
    reenter = reenter, take = take, token_for = token_for, token_of = token_of, left_of = left_of, hold_left = hold_left,
    check = function() redis.call('HLEN', notes) end,
    crowded = function(_) return false end,
    unswept = function() return unswept end,
    limit = function(first)
      set_up(first)
      return score('#l')
    end,
  }
end

local count = (#elements - FIRST + 1) / WIDTH
local function each(visit)
  for which = 0, count - 1 do
    local at = which * KEYED
    holds, queue, token = keys[at + 1], keys[at + 2], keys[at + 3]
    gone, notes = keys[at + 4], keys[at + 5]
    local first = FIRST + which * WIDTH
    visit(which, kinds[elements[first]], elements[first + 1], first)
  end
end

local function limit_of(kind, settings)
  local limit, strict = string.match(settings, '^(%d+),(%d)$')
  if not limit then return 0, false end
  local server = kind.limit(tonumber(limit))
  return server, strict == '1' and server ~= tonumber(limit)
end

-- Why this element cannot be taken; nothing if it can. Whatever may be foreign is looked at here, or by minting: an error
-- after the first is taken would leave a part (I16).
local enters_again = {}
local function refusal_of(which, kind, id, first)
  if is_gone(id) or kind.cools(id) then return { 4, which } end
  kind.check()
  local limit, differs = limit_of(kind, elements[first + 5])
  if differs then return { 7, which, limit } end
  local owner = elements[first + 2]
  if kind.may_reenter(id, owner) then
    enters_again[which] = true
    return kind.crowded(owner) and { 6, which } or nil
  end
  local room, unswept = kind.fits(id), kind.unswept()
  if room < 0 then return { 5, which } end
  if room == 0 or unswept == 1 or redis.call('EXISTS', queue) == 1 then
    return { 2, which, math.max(1, kind.hold_left()), unswept }
  end
  return nil
end

-- An earlier copy took all: then all are held still, or what is left of them is of no use.
local held, missing, refusal = 0, nil, nil
each(function(which, kind, id, first)
  kind.read_hold()
  if kind.holds_id(id) then
    held = held + 1
    return
  end
  missing = missing or which
  refusal = refusal or refusal_of(which, kind, id, first)
end)
if held > 0 and missing then return { 3, missing } end
if refusal then return refusal end

local minted = {}
if held == 0 then
  each(function(which, kind, id)
    if not enters_again[which] then minted[which] = kind.token_for(id) end
  end)
end

local reply = { 1, now_text }
each(function(which, kind, id, first)
  local owner, note, lease_ms = elements[first + 2], elements[first + 3], tonumber(elements[first + 4])
  if minted[which] then
    kind.take(id, owner, note, lease_ms, minted[which])
  else
    kind.read_hold()
    if held == 0 then kind.reenter(id, owner, note, lease_ms) end
  end
  reply[#reply + 1], reply[#reply + 2] = kind.token_of(id), kind.left_of(id)
  reply[#reply + 1] = limit_of(kind, elements[first + 5])
end)
return reply
