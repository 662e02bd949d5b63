-- ARGV[1] token, ARGV[2] how many failures this one counts as (1 or 0), ARGV[3] the time in
-- milliseconds, ARGV[4] the status or '-', ARGV[5] for how many milliseconds to keep the failures.
if state ~= 'running' or token ~= ARGV[1] then
  return 0
end
-- v1 running <token> <since> <lease> <attempt>
local attempt = tonumber(value:match('^%S+ %S+ %S+ %S+ %S+ (%d+)')) or 1
local attempts = attempt - 1 + tonumber(ARGV[2])
if attempts > 0 then
  local failed = ('v1 failed %s %s %d %s'):format(token, ARGV[3], attempts, ARGV[4])
  if not redis.pcall('SET', KEYS[1], failed, 'PX', ARGV[5]).err then
    return 1
  end
  -- No memory left for the count; the event must become runnable all the same.
end
redis.call('DEL', KEYS[1])
return 1
