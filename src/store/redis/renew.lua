-- ARGV[1] token, ARGV[2] the running value where there is none, ARGV[3] the lease in milliseconds.
if not value then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  return 1
end
if state ~= 'running' or token ~= ARGV[1] then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[3])
