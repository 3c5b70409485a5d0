-- Adds a message to the answers, with its body or without.
local function describe(answers, id, score, value, head_only)
  local length = 5 + struct.unpack('>I4', string.sub(value, 23, 26))
  local n = #answers
  answers[n + 1] = id
  answers[n + 2] = math.max(0, math.ceil(score - now))
  answers[n + 3] = score % 1 == 0.5 and score > now and 1 or 0
  answers[n + 4] = tonumber(string.sub(value, 1, 13))
  answers[n + 5] = #value - 21 - length
  answers[n + 6] = string.sub(value, 22, head_only and 21 + length or -1)
end
