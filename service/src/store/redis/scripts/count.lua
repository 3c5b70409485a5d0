-- Answers: per line its name and how many messages wait for it.
local answers = {}
local counts = redis.call('HGETALL', KEYS[3])
for at = 1, #counts, 2 do
  answers[#answers + 1] = redis.call('HGET', KEYS[4], counts[at]) or ''
  answers[#answers + 1] = counts[at + 1]
end
return answers
