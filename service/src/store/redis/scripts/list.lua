-- ARGV: where to begin, most messages, most ids to look at, the tag of a line or nothing. Answers: how many there are, where the
-- next page begins or -1, then per message id, milliseconds until it is tried, whether it is claimed, when it was to be due, size of its
-- body, head.
local due, kept = KEYS[1], KEYS[2]
local from, limit, scan, tag = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local answers = { redis.call('ZCARD', due), -1 }
local found = 0
local ids = redis.call('ZRANGE', due, from, from + scan - 1, 'WITHSCORES')
local looked = 0
for at = 1, #ids, 2 do
  if found == limit then break end
  looked = looked + 1
  local id = ids[at]
  local value = (tag == '' or string.sub(id, -8) == tag) and redis.call('HGET', kept, id)
  if value then
    describe(answers, id, tonumber(ids[at + 1]), value, true)
    found = found + 1
  end
end
if from + looked < answers[1] and looked > 0 then answers[2] = from + looked end
return answers
