-- A countdown latch. Needs: clock; locals latch, ids.
-- `latch` is a hash: generation, count (armed with), left, expires_ms and, once it was reset, `over`: then it stays a
-- minute, only to say so. `ids` is a zset: the call that armed -> generation, and each id that counted -> generation +
-- how many had counted by then. So ids of an earlier generation need no clearing away to count for nothing (I15), and a
-- resend is answered as the first copy was (I6).
local KEPT_MS = 60000 -- a copy of a call may still arrive so long
local MOST_SWEPT = 8
local WAITS, OPEN, RESET, ABSENT = 0, 1, 2, 3

local generation, count, left, expires_ms, over

local function read_latch()
  local found = redis.call('HMGET', latch, 'generation', 'count', 'left', 'expires_ms', 'over')
  generation, count, left = tonumber(found[1]), tonumber(found[2]), tonumber(found[3])
  expires_ms, over = tonumber(found[4]), found[5] == '1'
  if generation and count and left and expires_ms then return end
  if redis.call('EXISTS', latch) == 1 then error('WRONGTYPE the latch key holds something else') end
  generation = nil
end

-- I15: the ids were lost alone if not even the call that armed stands there. What they kept from counting twice would
-- open it too early, so the latch is lost with them.
local function state()
  if not generation then return ABSENT end
  if over then return RESET end
  if left == 0 then return OPEN end
  return redis.call('EXISTS', ids) == 1 and WAITS or ABSENT
end

-- Each key ends by itself (I17). A time to live that is refused (a user without the right) is an error, not an endless
-- key.
local function end_in(ms)
  local refused = redis.pcall('PEXPIREAT', ids, text(now_ms + math.max(ms, KEPT_MS)))
  if type(refused) ~= 'table' then refused = redis.pcall('PEXPIREAT', latch, text(now_ms + ms)) end
  return type(refused) == 'table' and refused or nil
end

-- Ids of earlier generations leave, a few at each call (I18), when no copy of their calls can come any more. Lowest
-- first: those below do not reach above the present generation. What was done before is done: nothing in here can fail.
local function sweep()
  local found = redis.pcall('ZRANGE', ids, 0, MOST_SWEPT - 1, 'WITHSCORES')
  local before, old = math.min(generation, now_us - KEPT_MS * 1000), 0
  for i = 2, #found, 2 do
    if tonumber(found[i]) < before then old = old + 1 end
  end
  if old > 0 then redis.pcall('ZREMRANGEBYRANK', ids, 0, old - 1) end
end
