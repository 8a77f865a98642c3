-- What a check does. Needs: clock, token, queue, a kind, settle; locals check_ms.
-- A call has up to 128 waiters, and the usual case makes three calls for each: more would hold the server up (I18).
local some_gone
local tickets = {}

-- The id is in the queue after it, unless it holds, was cancelled, or its owner holds and it joins as an entry.
local function attend(id, ticket, owner, note)
  if holds_id(id) then return nil end
  if (some_gone and is_gone(id)) or cools(id) then return { 4 } end
  local known = redis.call('ZSCORE', queue, id)
  if may_reenter(id, owner) then
    local _, lease_ms = split_id(id)
    if not reenter(id, owner, note, lease_ms) then
      leave(id)
      return { 6 }
    end
    if known then leave(id) end
  elseif fits(id) < 0 then
    leave(id) -- wherever it stands: those before it need not be granted first
    return { 5 }
  elseif known and ticket ~= 0 then
    refresh(id, owner, note)
    tickets[id] = tonumber(known)
  else -- with 0 it has had its turn, also where an earlier check has put it back
    tickets[id] = enter(id, owner, note, ticket)
  end
  return nil
end

local function answer(id)
  if holds_id(id) then return { 1, token_of(id), left_of(id) } end
  if refused[id] then return { 5 } end
  return { 0, redis.call('ZRANK', queue, id), text(tickets[id]) }
end

-- `waiting` has from `first` on four values an acquisition: id, ticket, owner, note.
local function check(waiting, first)
  read_hold()
  some_gone = redis.call('EXISTS', gone) == 1
  local callers, refusals = {}, {}
  for i = first, #waiting, 4 do
    local id = waiting[i]
    refusals[id] = attend(id, tonumber(waiting[i + 1]), waiting[i + 2], waiting[i + 3])
    if not refusals[id] then callers[id] = true end
  end
  local again = settle(callers)
  local reply = { again, math.max(1, math.min(check_ms, hold_left())), now_text }
  for i = first, #waiting, 4 do
    local id = waiting[i]
    reply[#reply + 1] = refusals[id] or answer(id)
  end
  return reply
end
