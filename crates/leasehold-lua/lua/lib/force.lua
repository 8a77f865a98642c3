-- Ending holds by force. Needs: clock, queue, shares and its kind, settle; locals gone, mark_ms.
-- A hold is named by its id, so that a resend, or a view that is no longer true, never ends another one. Its cool-down is
-- the same one, also if it has begun since the view was taken.
local function force(ids, first)
  redis.call('ZREMRANGEBYRANK', gone, 0, -10001)
  read_hold()
  local count = 0
  for i = first, #ids do
    local id = string.match(ids[i], '^%-?(.*)$')
    local member = (holds_id(id) and id) or (cools(id) and '-' .. id)
    if member then
      redis.call('ZADD', gone, text(now_ms + mark_ms), 'forced|' .. id)
      if redis.call('PTTL', gone) < mark_ms then redis.call('PEXPIRE', gone, mark_ms) end
      drop_entry(member, 0)
      tell(id, '2')
      count = count + 1
    elseif redis.call('ZSCORE', gone, 'forced|' .. id) then
      count = count + 1
    end
  end
  return { count, settle({}) }
end
