-- ARGV: milliseconds from now, 1 for a new lease or 0 to give it back, then per lease id and token. Answers: the token, then per lease
-- whether it was ours.
local score = exact(now + tonumber(ARGV[1]) + (ARGV[2] == '1' and 0.5 or 0))
local answers = { score }
for at = 3, #ARGV, 2 do
  local held = ours(KEYS[1], ARGV[at], ARGV[at + 1])
  if held then redis.call('ZADD', KEYS[1], 'XX', score, ARGV[at]) end
  answers[#answers + 1] = held and 1 or 0
end
return answers
