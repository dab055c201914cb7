-- What wrk sends: one payment, again and again, under keys that the workload chooses.
--
--   wrk … -s keys.lua URL -- WORKLOAD RUN BODY_FILE [HEADER …]
--
-- WORKLOAD  unique: every key is new · replay: KEYS_MAX keys over and over · mix: nine new, one replayed ·
--           unkeyed: no key at all
-- RUN       text that no other run on this server has used; new keys begin with it
-- HEADER    `Name: value`; `%s` in the value becomes a session made from the key's number (axum-idempotent needs one).
--           `X-Key-In-Body` has the key of unique requests stand in the JSON body too, as `idempotency_key`
--
-- The last line of output is the report, as JSON.

local KEYS_MAX = 1000
local SESSIONS_MAX = 1000

local started = 0
function setup(thread)
  thread:set("thread_number", started)
  started = started + 1
end

local workload, run, head, tail, has_session, in_body, unkeyed
-- The digits of a key in the body: with them all bodies are equally long.
local DIGITS = 9
local replays = {}
local sent = 0

-- A request is glued together from what stands before and after its key: formatting each one anew would make wrk
-- the bottleneck of a machine it shares with the server.
local function request_for(key, number)
  if in_body then
    return head .. key .. in_body .. key .. tail
  end
  if has_session then
    return head .. key .. string.format(tail, string.format("%020dAA", number % SESSIONS_MAX))
  end
  return head .. key .. tail
end

function init(arguments)
  workload, run = arguments[1], arguments[2]
  local file = assert(io.open(arguments[3], "r"))
  local body = file:read("*a")
  file:close()

  local before, after = {}, {}
  before[#before + 1] = "POST " .. wrk.path .. " HTTP/1.1"
  before[#before + 1] = "Host: " .. wrk.host .. ":" .. wrk.port
  before[#before + 1] = "Content-Type: application/json"
  for index = 4, #arguments do
    if arguments[index]:find("X-Key-In-Body", 1, true) then
      in_body = '{"idempotency_key":"'
      body = '",' .. body:sub(2)
    end
  end
  local key_bytes = in_body and #in_body + #run + #tostring(thread_number) + 2 + DIGITS or 0
  before[#before + 1] = "Content-Length: " .. #body + key_bytes
  local common = table.concat(before, "\r\n")
  for index = 4, #arguments do
    after[#after + 1] = arguments[index] .. "\r\n"
    has_session = has_session or arguments[index]:find("%s", 1, true) ~= nil
  end
  head = common .. "\r\nIdempotency-Key: "
  local rest = "\r\n" .. table.concat(after) .. "\r\n"
  if in_body then
    in_body, tail = rest .. in_body, body
  else
    tail = rest .. body
  end
  unkeyed = common .. tail

  for number = 0, KEYS_MAX - 1 do
    replays[number] = request_for("replay-" .. number, number)
  end
  -- Threads start at different places, so that they do not walk through the replayed keys in step.
  sent = thread_number * 389
end

function request()
  if workload == "unkeyed" then
    return unkeyed
  end
  sent = sent + 1
  if workload == "replay" or (workload == "mix" and sent % 10 == 0) then
    return replays[sent % KEYS_MAX]
  end
  local number = in_body and string.format("%0" .. DIGITS .. "d", sent) or sent
  return request_for(run .. "-" .. thread_number .. "-" .. number, sent)
end

function done(summary, latency, _)
  local seconds = summary.duration / 1e6
  local failed = summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout
  io.write(string.format(
    '{"requests":%d,"seconds":%.3f,"rps":%.1f,"p50_ms":%.3f,"p99_ms":%.3f,"refused":%d,"failed":%d}\n',
    summary.requests, seconds, summary.requests / seconds,
    latency:percentile(50) / 1000, latency:percentile(99) / 1000,
    summary.errors.status, failed))
end
