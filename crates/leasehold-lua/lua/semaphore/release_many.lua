--[[
Ends many holds, each named by its acquisition or by its owner, then grants whatever now fits. One that is not held
does not hinder the others.

KEYS[1]   holds     zset: id -> deadline, ms; limit and used
KEYS[2]   queue     zset: waiting id -> ticket
KEYS[3]   timeouts  hash: waiting id -> deadline, owner, note
KEYS[4]   gone      zset: id whose acquire may still arrive -> until, ms
KEYS[5]   notes     hash: id -> since, token, owner, note
ARGV[1]   grant_ms  number: lease of a pushed grant
ARGV[2…]  elements  three an element: acquisition id or owner, late (1 = an acquire may still arrive), at_least_ms

returns {again, answer…}   an answer an element: {1} released, {0, why} not held (0 absent, 1 adopted by another, 2 forced away)
]]
local holds, queue, timeouts, gone, notes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local grant_ms, elements = tonumber(ARGV[1]), ARGV
local FIRST, wait_ms = 2, 0

--#include clock
--#include queue
--#include shares
--#include semaphore
--#include settle

local function finish(id, at_least_ms)
  if cools(id) then return { 1 } end
  if not holds_id(id) then
    -- A late copy of its acquire may have queued it anew.
    leave(id)
    return { 0, why_not_held(id) }
  end
  drop_entry(id, at_least_ms)
  return { 1 }
end

-- An acquisition's id has bars, an owner has none.
local function finish_named(name, at_least_ms)
  if string.find(name, '|', 1, true) then return finish(name, at_least_ms) end
  local answer = { 0, 0 }
  for _, id in ipairs(entries_of(name)) do answer = finish(id, at_least_ms) end
  return answer
end

redis.call('ZREMRANGEBYRANK', gone, 0, -10001)
read_hold()
local reply = { 0 }
for i = FIRST, #elements, 3 do
  local name, late = elements[i], elements[i + 1]
  reply[#reply + 1] = finish_named(name, tonumber(elements[i + 2]))
  if late == '1' then
    redis.call('ZADD', gone, text(now_ms + 60000), name)
    redis.call('PEXPIRE', gone, 60000)
  end
end
reply[1] = settle({})
return reply
