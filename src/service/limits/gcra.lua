-- The generic cell rate algorithm, with the arithmetic of the governor crate, to the nanosecond. The only state of a key
-- is the theoretical arrival time of its next request: seconds and nanoseconds since the epoch.
--
-- KEYS[1]  Redis key of the limit
-- ARGV     nanoseconds between requests; burst size; expiry of the state in seconds;
--          the time in seconds and nanoseconds (optional; the default is the clock of Redis)
-- Returns  requests left, and nanoseconds to wait: 0 if this request is allowed.
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local tolerance = interval * (burst - 1)
local seconds, nanos = tonumber(ARGV[4]), tonumber(ARGV[5])
if not seconds then
  local time = redis.call('TIME')
  seconds, nanos = tonumber(time[1]), time[2] * 1000
end

-- Lua numbers are exact up to 2^53, too few for nanoseconds since the epoch, so the script calculates relative to now.
local ahead = 0
local due = redis.call('GET', KEYS[1])
if due then
  local due_seconds, due_nanos = string.match(due, '^(%d+) (%d+)$')
  ahead = (due_seconds - seconds) * 1e9 + (due_nanos - nanos)
  -- No burst reaches further ahead than this: the clock was set back, so the stored time is meaningless.
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
