-- ARGV: id. Answers: 1 deleted, 0 unknown, 2 claimed by a replica whose lease has not run out.
local score = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or nil)
if not score then return 0 end
if score % 1 == 0.5 and score > now then return 2 end
drop(KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1])
return 1
