-- Listing and ending holds of which there may be many, for people who look. Needs: clock, queue, shares and its kind.
-- Four values a hold: id (with - before it in a cool-down), weight, deadline_ms, since_ms|token|owner|note.
local function list(most, weigh)
  local found = redis.call('ZRANGEBYSCORE', holds, '(' .. text(now_ms), '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  local listed = {}
  for i = 1, #found, 2 do
    local id = found[i]
    if string.find(id, '|', 1, true) then -- else it is the kind's own
      listed[#listed + 1], listed[#listed + 2] = id, weigh(id)
      listed[#listed + 1] = text(tonumber(found[i + 1]))
      listed[#listed + 1] = redis.call('HGET', notes, id) or ''
    end
  end
  return listed
end
