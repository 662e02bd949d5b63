-- ARGV[1] the failed value that was read, ARGV[2] the running value that takes its place,
-- ARGV[3] the lease in milliseconds. Returns what is kept now.
local found = redis.call('GET', KEYS[1])
if found and found ~= ARGV[1] then
  return found
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return ARGV[2]
