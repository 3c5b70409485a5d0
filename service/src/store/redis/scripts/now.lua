-- Begins every script that asks for the time: Redis' own, in milliseconds.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- Scores as text, exactly. Lua's own way would round them.
local function exact(score) return string.format('%.1f', score) end
