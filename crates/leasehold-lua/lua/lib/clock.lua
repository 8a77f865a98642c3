-- The server's clock, read once a script: every order and every deadline comes from it (DESIGN: no client clock).
-- A number becomes text only through `text`: Lua's own conversion turns 16 digits into an exponent; %d is exact to
-- 2^53 and costs less than half of %.0f.
local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local now_ms = math.floor(now_us / 1000)
local function text(number) return string.format('%d', number) end
local now_text = text(now_us)
