-- Forgets a message, and counts it out of its line.
local function drop(due, kept, counts, lines, id)
  local there = redis.call('HDEL', kept, id)
  redis.call('ZREM', due, id)
  if redis.call('ZCARD', due) == 0 then
    -- What a crash has miscounted is right again.
    redis.call('DEL', counts, lines)
  elseif there == 1 then
    local tag = string.sub(id, -8)
    local left = tonumber(redis.call('HGET', counts, tag) or 0) - 1
    if left > 0 then
      redis.call('HSET', counts, tag, left)
    else
      redis.call('HDEL', counts, tag)
      redis.call('HDEL', lines, tag)
    end
  end
end
