-- Whether the holder of a lease has had the time to renew it: after the start of the server it needs some seconds. `ends` is
-- when the lease ends, `lease` how long it is; all times are milliseconds, `now` of this server's clock.
local function could_renew(ends, lease, now)
  -- The uptime is the difference of whole seconds of the clock; below 0 if that was set back.
  local uptime = tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(-?%d+)'))
  return uptime < 0 or uptime >= 7 or ends - lease > 1000 * (math.floor(now / 1000) - uptime)
end
