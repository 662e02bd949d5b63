-- SET KEYS[1] ARGV[1] NX PX ARGV[2] GET, for servers where NX and GET exclude each other.
local found = redis.call('GET', KEYS[1])
if not found then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return found
