-- ARGV: per lease id and token.
local answers = {}
for at = 1, #ARGV, 2 do
  local held = ours(KEYS[1], ARGV[at], ARGV[at + 1])
  if held then drop(KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[at]) end
  answers[#answers + 1] = held and 1 or 0
end
return answers
