-- Fencing tokens. Needs: clock; locals token, fence_ms, floor.
-- I5: larger than the last one, not smaller than the server's clock in microseconds (so it grows even after the
-- key was lost), larger than the highest that this client has seen. A floor more than a day ahead of the clock is
-- ignored: it would poison the name.
-- One SET … GET is the usual case; the second SET runs only where the clock stands or went back.
local function mint()
  local fresh, minted = now_us, now_text
  if floor >= fresh and floor <= now_us + 86400000000 then
    fresh = floor + 1
    minted = text(fresh)
  end
  local last = redis.call('SET', token, minted, 'PX', fence_ms, 'GET')
  if not last then return minted end
  local number = tonumber(last)
  if not number then
    redis.call('SET', token, last)
    error('WRONGTYPE the fencing token key holds something else')
  end
  if number >= fresh then
    minted = text(number + 1)
    redis.call('SET', token, minted, 'PX', fence_ms)
  end
  return minted
end
