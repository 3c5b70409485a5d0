-- ARGV: id. Answers as a list does, with the body.
local answers = {}
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
local value = redis.call('HGET', KEYS[2], ARGV[1])
if score and value then describe(answers, ARGV[1], tonumber(score), value, false) end
return answers
