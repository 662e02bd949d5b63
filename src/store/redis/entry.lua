-- In front of every script: the state and the token of what is kept under KEYS[1].
-- The first three fields of a value never change; the rest may, with its version.
local value = redis.call('GET', KEYS[1])
local state, token
if value then
  if #ARGV[1] == 32 and value:sub(1, 44) == 'v1 running ' .. ARGV[1] .. ' ' then
    -- What the caller's own token wrote, as nearly always. To take it apart would cost more than
    -- all else here.
    state, token = 'running', ARGV[1]
  else
    state, token = (value .. ' '):match('^v%d+ (%l+) (%x+) ')
    if #(token or '') ~= 32 or (state ~= 'running' and state ~= 'failed' and state ~= 'done') then
      return redis.error_reply('UNREADABLE the stored value is not an entry')
    end
  end
end
