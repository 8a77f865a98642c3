-- What a check does. Needs: clock, token, queue, a kind, settle; locals check_ms, deaf.
-- A call has up to 100 waiters, nearly all of them where they were: what these need is asked, and done, for all at once,
-- and only the position of each by itself (I18).
local tickets = {}

-- The id is in the queue after it, unless it holds, was cancelled, or its owner holds and it joins as an entry.
local function attend(id, known, ticket, owner, note)
  if holds_id(id) then return nil end
  if is_gone(id) or cools(id) then return { 4 } end
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
    tickets[id] = known
  else -- with 0 it has had its turn, also where an earlier check has put it back
    tickets[id] = enter(id, owner, note, ticket)
  end
  return nil
end

-- `waiting` has from `first` on four values an acquisition: id, ticket, owner, note. Answers who is refused, and why.
local function attend_all(waiting, first)
  local all, owners, refusals = {}, {}, {}
  for i = first, #waiting, 4 do
    all[#all + 1], owners[#owners + 1] = waiting[i], waiting[i + 2]
  end
  local places, marks = redis.call('ZMSCORE', queue, unpack(all)), redis.call('ZMSCORE', gone, unpack(all))
  local others, usual = unusual(all, owners), {}
  for n, id in ipairs(all) do
    local i = first + (n - 1) * 4
    local known, ticket = tonumber(places[n] or nil), tonumber(waiting[i + 1])
    if known and ticket ~= 0 and not marks[n] and not others[id] then
      usual[#usual + 1], usual[#usual + 2], usual[#usual + 3] = id, owners[n], waiting[i + 3]
      tickets[id] = known
    else
      refusals[id] = attend(id, known, ticket, owners[n], waiting[i + 3])
    end
  end
  if #usual > 0 then refresh(unpack(usual)) end
  return all, refusals
end

local function answer(id)
  local position = tickets[id] and redis.call('ZRANK', queue, id)
  if position then return { 0, position, text(tickets[id]) } end
  if refused[id] then return { 5 } end
  return { 1, token_of(id), left_of(id) }
end

local function check(waiting, first)
  -- Otherwise whoever lets go would take them for dead, each time, as long as others wait too.
  if deaf == '1' then looking = '!' .. text(now_ms + check_ms) end
  read_hold()
  local all, refusals = attend_all(waiting, first)
  local callers = {}
  for _, id in ipairs(all) do callers[id] = not refusals[id] end
  local again = settle(callers)
  local reply = { again, math.max(1, math.min(check_ms, hold_left())), now_text }
  for _, id in ipairs(all) do reply[#reply + 1] = refusals[id] or answer(id) end
  return reply
end
