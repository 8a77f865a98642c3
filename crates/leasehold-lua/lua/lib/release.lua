-- What a release, which is also the cancel, does where the usual case does not hold. Needs: clock, token, queue, a
-- kind, settle; locals id, late, at_least_ms.
local function release()
  -- A write that changes nothing: on a replica it answers READONLY instead of a false "not held", and at maxmemory it
  -- switches the refusal of later writes off. It also bounds the zset.
  redis.call('ZREMRANGEBYRANK', gone, 0, -10001)
  read_hold()
  local reply
  if cools(id) then
    reply = { 1, 0 }
  elseif holds_id(id) then
    drop_entry(id, at_least_ms)
    reply = { 1, 0 }
  else
    local position = redis.call('ZRANK', queue, id)
    if position then
      leave(id)
      local since, note = who_holds(id)
      reply = { 4, 0, position, hold_left(), since, note, now_text }
    else
      reply = { 0, 0, why_not_held(id) }
    end
  end
  if late == '1' then
    redis.call('ZADD', gone, text(now_ms + 60000), id)
    redis.call('PEXPIRE', gone, 60000)
  end
  -- I7: it has ended by now. What stands in the next one's way (a token key that is not ours, say) is told to that one.
  local function hand_on()
    reply[2] = settle({})
  end
  pcall(hand_on)
  return reply
end
