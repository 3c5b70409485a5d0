-- ARGV: after which score and id to begin, or nothing twice, most messages, most ids to look at, the tag of a line or nothing. Answers: how
-- many there are, after which score and id the next page begins, or nothing twice, then per message id, milliseconds until it is tried,
-- whether it is claimed, when it was to be due, size of its body, head.
local due, kept = KEYS[1], KEYS[2]
local score, id, limit, scan, tag = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
-- Not by rank: what goes meanwhile, or comes, moves all behind it. Of those with the score, all up to the id are passed over; if it has gone,
-- none is, and some come twice.
local passed = 0
if score ~= '' then
  local at = 0
  repeat
    local alike = redis.call('ZRANGE', due, score, score, 'BYSCORE', 'LIMIT', at, scan)
    for n = 1, #alike do
      if alike[n] == id then passed = at + n end
    end
    at = at + #alike
  until passed > 0 or #alike < scan
end
local answers = { redis.call('ZCARD', due), '', '' }
local found = 0
local first = score == '' and '-inf' or score
local ids = redis.call('ZRANGE', due, first, '+inf', 'BYSCORE', 'LIMIT', passed, scan, 'WITHSCORES')
local looked = 0
for at = 1, #ids, 2 do
  if found == limit then break end
  looked = looked + 1
  local one = ids[at]
  local value = (tag == '' or string.sub(one, -8) == tag) and redis.call('HGET', kept, one)
  if value then
    describe(answers, one, tonumber(ids[at + 1]), value, true)
    found = found + 1
  end
end
if looked > 0 and (2 * looked < #ids or #ids == 2 * scan) then
  answers[2], answers[3] = exact(ids[2 * looked]), ids[2 * looked - 1]
end
return answers
