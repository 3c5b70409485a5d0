-- ARGV: per message its id, the id of its twin, a nonce, whether it is known again, delay, line, head, body.
-- What is stored: 13 digits of the time when it is due, 8 letters of the nonce, head, body.
-- Without `allow-oom`: a Redis that is full refuses this one script, before it has begun.
-- A server that was killed while it wrote this may run the first commands alone, after a later start (docs/redis-store.md). So a message is
-- due before it is kept, and what is not due is not there; and counts are written as they are, because a step would be taken twice.
local due, kept, counts, lines = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local answers, seen, added = {}, false, {}
for at = 1, #ARGV, 8 do
  local id, twin, nonce, again = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local known = false
  local score = redis.call('ZSCORE', due, id)
  local there = score and redis.call('HGET', kept, id)
  if there then
    -- What is in hand may be published, and handled, already: this may be its next life, and goes with it if it is taken for the same.
    local waits = tonumber(score) % 1 == 0
    known = (again == '1' and waits) or string.sub(there, 14, 21) == nonce
      or (redis.call('HEXISTS', kept, twin) == 1 and redis.call('ZSCORE', due, twin) ~= false)
    id = twin
  end
  if not known then
    local at_last = now + tonumber(ARGV[at + 4])
    local tag = string.sub(id, -8)
    if not added[tag] then redis.call('HSET', lines, tag, ARGV[at + 5]) end
    redis.call('ZADD', due, exact(at_last), id)
    redis.call('HSET', kept, id, string.format('%013.0f', at_last) .. nonce .. ARGV[at + 6] .. ARGV[at + 7])
    added[tag] = (added[tag] or 0) + 1
  end
  seen = seen or known
  answers[#answers + 1] = known and 0 or 1
end
for tag, more in pairs(added) do
  redis.call('HSET', counts, tag, tonumber(redis.call('HGET', counts, tag) or 0) + more)
end
-- `WAITAOF` and `WAIT` speak of what this connection has written. What is known was written by another, perhaps a moment ago, and may be
-- on no disk yet; a write of our own comes after it.
if seen then redis.call('SET', KEYS[5], exact(now)) end
return answers
