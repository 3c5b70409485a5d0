-- ARGV: most messages to go through. Counts the messages of each line again, and forgets what is due and not kept.
local due, kept, counts = KEYS[1], KEYS[2], KEYS[3]
local all = redis.call('ZCARD', due)
if all > tonumber(ARGV[1]) then return 0 end
local totals, gone = {}, {}
for from = 0, all - 1, 4096 do
  for _, id in ipairs(redis.call('ZRANGE', due, from, from + 4095)) do
    local tag = string.sub(id, -8)
    if redis.call('HEXISTS', kept, id) == 1 then totals[tag] = (totals[tag] or 0) + 1 else gone[#gone + 1] = id end
  end
end
for _, id in ipairs(gone) do redis.call('ZREM', due, id) end
redis.call('DEL', counts)
for tag, total in pairs(totals) do redis.call('HSET', counts, tag, total) end
return 1
