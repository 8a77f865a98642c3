-- Settle: grant what now fits. Needs: clock, token, queue and a kind (fits, take, end_hold); locals grant_ms.
-- I21: after it the queue is empty, or its head is alive and does not fit, or it answers 1: the bound of heads was
-- reached and the caller repeats its call at once (I18).
-- `callers` maps the ids of the calling script to true: they get their full lease and read it in the reply; a script
-- never publishes to its caller. Everybody else gets the short grant lease and one push.
local MOST_HEADS = 32

local function announce(id, minted, ms)
  local uuid, _, inbox = split_id(id)
  if not inbox then return 0 end -- not an id of ours: nobody is there
  -- I1: asked before it is published. PUBLISH travels to replicas too; an inbox that still listens at a demoted master
  -- would hear of a grant that is given up here, and run.
  local listening = redis.pcall('PUBSUB', 'NUMSUB', inbox)
  if listening[2] == 0 then return 0 end
  local message = uuid .. ' 1 ' .. minted .. ' ' .. text(ms) .. ' ' .. now_text
  return redis.pcall('PUBLISH', inbox, message)
end

local function settle(callers)
  for _ = 1, MOST_HEADS do
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    if not head then
      -- DEL would take a foreign value too: what is not a hash is not ours.
      if type(redis.pcall('HLEN', timeouts)) == 'number' then redis.call('DEL', timeouts) end
      return 0
    end
    local deadline, owner, note = waiter(head)
    if deadline <= now_ms then
      leave(head)
    elseif fits(head) == 0 then
      return 0
    else
      local _, lease = split_id(head)
      local ms = callers[head] and lease or math.min(lease, grant_ms)
      local minted = mint() -- may fail on a foreign key: before the pop
      leave(head)
      take(head, owner, note, ms, minted)
      -- Only a count of 0 is dead (its connection is closed); an error is alive, and the check finds the grant.
      if not callers[head] and announce(head, minted, ms) == 0 then end_hold() end
    end
  end
  return 1
end
