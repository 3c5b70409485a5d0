-- ARGV: per message its id, the id of its twin, a nonce, whether it is known again, delay, line, head, body.
-- What is stored: 13 digits of the time when it is due, 8 letters of the nonce, head, body.
-- Without `allow-oom`: a Redis that is full refuses this one script, before it has begun.
local due, kept, counts, lines = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local answers, seen = {}, false
for at = 1, #ARGV, 8 do
  local id, twin, nonce, again = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local known = false
  local there = redis.call('HGET', kept, id)
  if there then
    -- What is in hand may be published, and handled, already: this may be its next life, and goes with it if it is taken for the same.
    local waits = tonumber(redis.call('ZSCORE', due, id) or 0.5) % 1 == 0
    known = (again == '1' and waits) or string.sub(there, 14, 21) == nonce or redis.call('HEXISTS', kept, twin) == 1
    id = twin
  end
  if not known then
    local at_last = now + tonumber(ARGV[at + 4])
    local tag = string.sub(id, -8)
    redis.call('HSET', kept, id, string.format('%013.0f', at_last) .. nonce .. ARGV[at + 6] .. ARGV[at + 7])
    redis.call('ZADD', due, exact(at_last), id)
    if redis.call('HINCRBY', counts, tag, 1) == 1 then redis.call('HSET', lines, tag, ARGV[at + 5]) end
  end
  seen = seen or known
  answers[#answers + 1] = known and 0 or 1
end
-- `WAITAOF` and `WAIT` speak of what this connection has written. What is known was written by another, perhaps a moment ago, and may be
-- on no disk yet; a write of our own comes after it.
if seen then redis.call('SET', KEYS[5], exact(now)) end
return answers
