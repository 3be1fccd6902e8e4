-- GCRA, as the crate governor counts it, to the nanosecond. Of a key no more is remembered than when the next
-- request would be due if they came evenly: seconds and nanoseconds since the epoch.
--
-- KEYS[1]  what to count under
-- ARGV     nanoseconds between requests; requests at once; seconds after which a key is as good as new;
--          the time in seconds and nanoseconds, or nothing for Redis's own
-- Returns  requests left, and nanoseconds to wait: 0 when this one is allowed.
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local tolerance = interval * (burst - 1)
local seconds, nanos = tonumber(ARGV[4]), tonumber(ARGV[5])
if not seconds then
  local time = redis.call('TIME')
  seconds, nanos = tonumber(time[1]), time[2] * 1000
end

-- Numbers are exact up to 2^53 here: no time since the epoch in nanoseconds, but a time from now.
local ahead = 0
local due = redis.call('GET', KEYS[1])
if due then
  local due_seconds, due_nanos = string.match(due, '^(%d+) (%d+)$')
  ahead = (due_seconds - seconds) * 1e9 + (due_nanos - nanos)
  -- No burst reaches further than this: the clock was set back since, and what it said is worth nothing.
  if ahead < 0 or ahead > tolerance + interval then
    ahead = 0
  end
end
if ahead > tolerance then
  return {0, ahead - tolerance}
end

ahead = ahead + interval
nanos = nanos + ahead
due = string.format('%d %d', seconds + math.floor(nanos / 1e9), nanos % 1e9)
redis.call('SET', KEYS[1], due, 'EX', ARGV[3])
return {math.floor((tolerance + interval - ahead) / interval), 0}
