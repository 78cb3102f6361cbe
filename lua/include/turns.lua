-- Whose turn is next in a lot that is shared, see shares.lua.
--
-- Uses a lot in use, see lot.lua: PARKED, MESSAGES, ASIDE, SHARES, TURNS, WEIGHTS; HELD, CLOCK, SINCE, FROM_PLACE, MARKS, precise,
-- share_in, entry_of, add_share, weight_of of shares.lua; room(), whether the script may do more; did(work), which notes what it
-- has done.
-- Gives fair, of the lot in use; nil: it is not shared. use_turns(weights), which reads it: `weights` are the code's, "<number> NUL
-- <share> <weight> NUL <share> <weight> NUL", where the number says which they are. next_by_share(may_come): the id whose turn it is;
-- nil: there is none; false: the script has done enough; may_come(id, place) is false for a task that was set aside.
-- charge(cost): it is let out. index(id, place): it is parked again. keep_turns(), at the end.
local fair
local MOST_HELD = 2147483648 -- 2^31
local SOME, STEP = 20, 0.2 -- tasks that are looked at together; what a step takes, in tasks that are let out

local function begins_now(shares)
    for _, share in ipairs(shares) do call('ZADD', TURNS, 'XX', precise(fair.clock), share) end
end

-- Those whose weight was changed last begin at the present: what they have had was at the weight that they had.
local function heed_changes(since)
    local last = 0
    for at, share in string.gmatch(call('HGET', WEIGHTS, CLOCK) or '', '(%d+) (%S*) ') do
        last = tonumber(at)
        if last > since then begins_now({share}) end
    end
    if last > since then call('ZADD', TURNS, int(-last), SINCE) end
    return last
end

-- Those that were held back by other weights than hold now may go on: some of them. Were there any?
local function let_go()
    if call('ZRANGE', TURNS, -1, -1, 'WITHSCORES')[2] - HELD < 0 then return false end
    local held = call('ZRANGEBYSCORE', TURNS, int(HELD), '(' .. int(fair.held), 'LIMIT', 0, SOME)
    if #held == 0 then held = call('ZRANGEBYSCORE', TURNS, '(' .. int(fair.held), '+inf', 'LIMIT', 0, SOME) end
    begins_now(held)
    did(#held * STEP)
    return #held > 0
end

local function index(id, place)
    local share = share_in(call('HGET', MESSAGES, id) or '}}') or ''
    if call('ZADD', SHARES, 0, entry_of(share, place, id)) == 1 then add_share(share) end
end

-- Tasks that are in no index, as a version before this one has parked them, or as the limit was not fair: some are put into it.
local function index_some()
    if call('ZCARD', PARKED) <= call('ZCARD', SHARES) then return false end
    local from = -call('ZSCORE', TURNS, FROM_PLACE) - 1
    local found = call('ZRANGEBYSCORE', PARKED, int(from), '+inf', 'WITHSCORES', 'LIMIT', 0, SOME)
    local last = from
    for i = 1, #found, 2 do
        last = tonumber(found[i + 1])
        index(found[i], last)
    end
    did(#found / 2 * STEP)
    last = #found < 2 * SOME and 0 or last > from and last or last + 1
    call('ZADD', TURNS, int(-last - 1), FROM_PLACE)
    return #found > 0
end

local function use_turns(weights)
    local marks = call('ZRANGE', TURNS, 0, MARKS - 1, 'WITHSCORES')
    fair = nil
    if #marks == 0 then return end
    local said = {}
    for i = 1, #marks, 2 do said[marks[i]] = -marks[i + 1] end
    fair = {weights = weights, clock = said[CLOCK]}
    fair.held = HELD + (heed_changes(said[SINCE]) + (match(weights, '^%d+') or 0)) % MOST_HELD
    let_go()
    index_some()
end

local function weight_in_code(share)
    local _, at = string.find(fair.weights, '\0' .. share .. ' ', 1, true)
    return at and match(fair.weights, '^[^%z]+', at + 1) or 1
end

local function next_by_share(may_come)
    while room() > 0 do
        local share, tag = unpack(call('ZRANGE', TURNS, MARKS, MARKS, 'WITHSCORES'))
        if not share or tag - HELD >= 0 then
            if not let_go() and not index_some() then return nil end
        else
            local entry = call('ZRANGEBYLEX', SHARES, '[' .. share .. '\0', '(' .. share .. '\1', 'LIMIT', 0, 1)[1]
            local weight = entry and weight_of(share, weight_in_code(share))
            local place, id = match(entry or '', '^[^%z]*%z(%d+)%z(.*)$')
            if not entry then
                fair.clock = max(fair.clock, tag)
                call('ZREM', TURNS, share)
            elseif weight == 0 then
                call('ZADD', TURNS, int(fair.held), share)
            elseif tonumber(call('ZSCORE', PARKED, id)) ~= tonumber(place) or not may_come(id, place) then
                call('ZREM', SHARES, entry)
            else
                fair.share, fair.tag, fair.weight = share, max(fair.clock, tag), weight
                return id
            end
            did(STEP)
        end
    end
    if call('EXISTS', PARKED) + call('EXISTS', ASIDE) > 0 then return false end
end

local function charge(cost)
    fair.clock = fair.tag
    call('ZADD', TURNS, precise(min(fair.tag + cost / fair.weight, HELD - 1)), fair.share)
end

local function keep_turns()
    call('ZADD', TURNS, precise(-fair.clock), CLOCK)
end
