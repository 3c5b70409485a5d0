-- Answers: how many messages there are, then per line its name and how many of them wait for it.
local answers = { redis.call('ZCARD', KEYS[1]) }
local counts = redis.call('HGETALL', KEYS[3])
for at = 1, #counts, 2 do
  answers[#answers + 1] = redis.call('HGET', KEYS[4], counts[at]) or ''
  answers[#answers + 1] = counts[at + 1]
end
return answers
