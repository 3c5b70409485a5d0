-- ARGV: ids. Answers per id: 1 due now, 0 unknown, 2 claimed by a replica whose lease has not run out.
local answers = {}
for at = 1, #ARGV do
  local score = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[at]) or nil)
  if not score then
    answers[at] = 0
  elseif score % 1 == 0.5 and score > now then
    answers[at] = 2
  else
    if score > now then redis.call('ZADD', KEYS[1], 'XX', exact(now), ARGV[at]) end
    answers[at] = 1
  end
end
return answers
