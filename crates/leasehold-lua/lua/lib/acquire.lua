-- What an acquire does where the usual case does not hold. Needs: clock, token, queue, a kind, settle; locals id,
-- owner, note, lease_ms, mode, max_waiters, wait_ms, check_ms.
local function taken() return { 1, token_of(id), left_of(id), now_text } end

-- Whether a newcomer finds no room; dead members, wherever they stand, do not count against the living.
local function full()
  if max_waiters < 0 or redis.call('ZCARD', queue) < max_waiters then return false, 0 end
  local again = settle({})
  for _, member in ipairs(redis.call('ZRANDMEMBER', queue, 16)) do
    if waiter(member) <= now_ms then leave(member) end
  end
  local length = redis.call('ZCARD', queue)
  if length == 0 and fits(id) == 1 then return false, 0 end
  return length >= max_waiters, again
end

local function acquire()
  read_hold()
  if holds_id(id) then return taken() end
  -- An id that cools down was released: this is a late copy.
  if is_gone(id) or cools(id) then return { 4, now_text } end
  local known = redis.call('ZSCORE', queue, id)

  if may_reenter(id, owner) then
    local joined = reenter(id, owner, note, lease_ms)
    if known then
      leave(id)
      settle({})
    end
    return joined and taken() or { 6, now_text }
  end

  if mode == 'wait' or known then
    local ticket = known
    if known then
      refresh(id, owner, note)
    else
      if fits(id) < 0 then return { 5, now_text } end
      local no_room, again = full()
      if no_room then return { 3, hold_left(), again, now_text } end
      ticket = enter(id, owner, note, 0)
    end
    local again = settle({ [id] = true })
    if holds_id(id) then return taken() end
    if refused[id] then return { 5, now_text } end
    local position = redis.call('ZRANK', queue, id)
    return { 0, position, math.max(1, math.min(check_ms, hold_left())), text(ticket), again, now_text }
  end

  -- A try never queues, but it hands on what had expired; no newcomer passes a queue.
  local again = settle({})
  local room = fits(id)
  if room < 0 then return { 5, now_text } end
  if again == 0 and room == 1 and redis.call('EXISTS', queue) == 0 then
    take(id, owner, note, lease_ms, token_for(id))
    return taken()
  end
  return { 2, hold_left(), again, now_text }
end
