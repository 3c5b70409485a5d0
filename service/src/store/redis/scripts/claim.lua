-- ARGV: most messages, most bytes, most ids to look at, lease, then per line on hold its tag and for how long; -1 leaves those where
-- they are. Answers: when the next one is due, or -1, the token, then per message id, lateness, whether a lease ran out, value.
local due, kept = KEYS[1], KEYS[2]
local limit, room, scan = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local holds = {}
for at = 5, #ARGV, 2 do holds[ARGV[at]] = tonumber(ARGV[at + 1]) end
local token = exact(now + tonumber(ARGV[4]) + 0.5)
local answers = { -1, token }
local first = redis.call('ZRANGE', due, '-inf', exact(now), 'BYSCORE', 'LIMIT', 0, scan, 'WITHSCORES')
local taken, left, passed = 0, false, false
for at = 1, #first, 2 do
  local id, score = first[at], tonumber(first[at + 1])
  local hold = holds[string.sub(id, -8)]
  if hold and hold < 0 then
    passed = true
  elseif hold then
    redis.call('ZADD', due, 'XX', exact(now + hold), id)
  else
    local size = redis.call('HSTRLEN', kept, id)
    if size == 0 then
      redis.call('ZREM', due, id)
    elseif taken == limit or (taken > 0 and size > room) then
      left = true
      break
    else
      local value = redis.call('HGET', kept, id)
      redis.call('ZADD', due, 'XX', token, id)
      taken, room = taken + 1, room - size
      local n = #answers
      answers[n + 1] = id
      answers[n + 2] = math.max(0, now - tonumber(string.sub(value, 1, 13)))
      answers[n + 3] = score % 1 == 0.5 and 1 or 0
      answers[n + 4] = string.sub(value, 22)
    end
  end
end
if left or #first == 2 * scan then
  answers[1] = 0
else
  -- What was passed over is for its line's owner to come back for; the next of the others is later than now.
  local from = passed and '(' .. exact(now) or '-inf'
  local next = redis.call('ZRANGE', due, from, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  if next[2] then answers[1] = math.max(0, math.ceil(tonumber(next[2]) - now)) end
end
return answers
