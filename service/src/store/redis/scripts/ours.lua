-- Whether the lease is still ours: the score is as the claim has left it. No two claims of one message leave the same score, and
-- only a claim leaves a score with a half in it.
local function ours(due, id, token)
  local score = redis.call('ZSCORE', due, id)
  return score and tonumber(score) == tonumber(token)
end
