-- ARGV[1] whether to remove a running entry too (1 or 0).
if not value or (state == 'running' and ARGV[1] ~= '1') then
  return 0
end
return redis.call('DEL', KEYS[1])
