-- Tells the processes that wait at a latch. Needs: clock, latch; local waiters.
-- `waiters` is a zset: uuid|inbox -> until when that process listens, ms. One entry a process, one push each, at most a
-- hundred a call (I18); answers 1 if there are more: the caller repeats its call at once, and whoever is not reached
-- looks within a second (I11). Nothing in here can fail: what was counted is counted.
local MOST_TOLD = 100

local function tell(what)
  local found = redis.pcall('ZRANGE', waiters, 0, MOST_TOLD - 1, 'WITHSCORES')
  if found.err or #found == 0 then return 0 end
  local news = ' 4 ' .. text(generation) .. ' ' .. what
  for i = 1, #found, 2 do
    local uuid, inbox = string.match(found[i], '^([^|]*)|(.*)$')
    if inbox and tonumber(found[i + 1]) > now_ms then redis.pcall('PUBLISH', inbox, uuid .. news) end
  end
  local removed = redis.pcall('ZREMRANGEBYRANK', waiters, 0, #found / 2 - 1)
  if type(removed) == 'table' then return 0 end
  return redis.pcall('EXISTS', waiters) == 1 and 1 or 0
end
