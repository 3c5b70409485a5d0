-- ARGV: id, lease. Answers: nothing if it is unknown, 2 if it is claimed by a replica whose lease has not run out, else the token, how long it
-- had still to wait, and the value.
local score = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or nil)
local value = redis.call('HGET', KEYS[2], ARGV[1])
if not score or not value then return {} end
if score % 1 == 0.5 and score > now then return { 2 } end
local token = exact(now + tonumber(ARGV[2]) + 0.5)
redis.call('ZADD', KEYS[1], 'XX', token, ARGV[1])
return { token, math.max(0, math.ceil(score - now)), string.sub(value, 22) }
