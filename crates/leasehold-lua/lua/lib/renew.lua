-- Renewing holds of which there may be many. Needs: clock, queue, shares and its kind; locals holds, notes, gone, which
-- change with the element.
local function why(id)
  local marks = redis.pcall('ZMSCORE', gone, 'forced|' .. id, 'adopted|' .. id)
  return (marks[1] and 2) or (marks[2] and 1) or 0 -- an error has neither
end

local function renew(id, lease_ms)
  local deadline = redis.pcall('ZSCORE', holds, id)
  if type(deadline) == 'table' then return 3, deadline.err end
  if not deadline or tonumber(deadline) <= now_ms then return 0, why(id) end
  extend(id, now_ms + lease_ms)
  return 1, left_of(id)
end
