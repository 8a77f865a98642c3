-- Settle: grant what now fits. Needs: clock, token, queue and a kind; locals grant_ms.
-- I21: after it the queue is empty, or its head is alive and does not fit, or it answers 1: a bound was reached and the
-- caller repeats its call at once (I18).
-- `callers` maps the ids of the calling script to true: they get their full lease and read it in the reply; a script
-- never publishes to its caller. Everybody else gets the short grant lease and one push.
-- A kind has `unswept`, `fits` (1, 0, or -1 for never; told the owner of a waiter), `token_for`, `take` and `give_back`.
local MOST_DEAD, MOST_GRANTS = 32, 128
local refused, listeners = {}, {}

-- I1: asked before it is published. PUBLISH travels to replicas too; an inbox that still listens at a demoted master
-- would hear of a grant that is given up here, and run.
local function listening(inbox)
  if not inbox then return false end -- not an id of ours: nobody is there
  if listeners[inbox] == nil then
    local heard = redis.pcall('PUBSUB', 'NUMSUB', inbox)
    listeners[inbox] = heard[2] ~= 0
  end
  return listeners[inbox]
end

local function announce(id, minted, ms)
  local uuid, _, _, inbox = split_id(id)
  if not listening(inbox) then return 0 end
  local message = uuid .. ' 1 ' .. minted .. ' ' .. text(ms) .. ' ' .. now_text
  return redis.pcall('PUBLISH', inbox, message)
end

-- Tells an acquisition how it ended: 2 by force, 5 it will never fit, 6 an operator took it out of the queue.
local function tell(id, what)
  local uuid, _, _, inbox = split_id(id)
  if inbox then redis.pcall('PUBLISH', inbox, uuid .. ' ' .. what) end
end

local function grant(head, owner, note, callers, looks)
  local _, lease = split_id(head)
  local ms = callers[head] and lease or math.min(lease, grant_ms)
  local minted = token_for(head) -- may fail on a foreign key: before the pop
  leave(head)
  take(head, owner, note, ms, minted)
  -- Only a count of 0 is dead (its connection is closed), unless it has just said that it looks; an error is alive. The
  -- check finds the grant of both.
  if not callers[head] and announce(head, minted, ms) == 0 and not looks then
    give_back(head)
    return false
  end
  return true
end

local function settle(callers)
  if unswept == 1 then return 1 end
  local dead, granted = 0, 0
  while dead < MOST_DEAD and granted < MOST_GRANTS do
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    if not head then
      -- DEL would take a foreign value too: what is not a hash is not ours.
      if type(redis.pcall('HLEN', timeouts)) == 'number' then redis.call('DEL', timeouts) end
      return 0
    end
    local deadline, owner, note, looks = waiter(head)
    local room = fits(head, owner)
    if deadline <= now_ms then
      leave(head)
      dead = dead + 1
    elseif room == 0 then
      return 0
    elseif room < 0 then
      leave(head)
      refused[head], dead = true, dead + 1
      if not callers[head] then tell(head, '5') end
    elseif grant(head, owner, note, callers, looks) then
      granted = granted + 1
    else
      dead = dead + 1
    end
  end
  return 1
end
