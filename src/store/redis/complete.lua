-- ARGV[1] token, ARGV[2] the done value, ARGV[3] the retention in milliseconds.
if (state == 'running' or state == 'done') and token ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
