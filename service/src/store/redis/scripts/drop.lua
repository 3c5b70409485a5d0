-- Forgets a message, and counts it out of its line.
local function drop(due, kept, counts, lines, id)
  redis.call('ZREM', due, id)
  if redis.call('HDEL', kept, id) == 0 then return end
  local tag = string.sub(id, -8)
  if redis.call('HINCRBY', counts, tag, -1) <= 0 then
    redis.call('HDEL', counts, tag)
    redis.call('HDEL', lines, tag)
  end
end
