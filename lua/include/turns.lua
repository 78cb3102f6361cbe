-- Whose turn is next in a lot that is shared, see shares.lua.
--
-- What a look changes is written at its end, together.
--
-- Uses a lot in use, see lot.lua: PARKED, MESSAGES, ASIDE, SHARES, TURNS, WEIGHTS; shares, HELD, CLOCK, SINCE, FROM_PLACE, SOME_HELD,
-- MARKS, precise of shares.lua; room(), whether the script may do more; did(work), which notes what it has done.
-- Gives turns, which is nil where this text is not put in:
--   use(weights)    is the lot shared? `weights`: the code's, "<number> NUL <share> <weight> NUL <share> <weight> NUL", where the
--                   number says which they are
--   next(may_come)  the id whose turn it is; nil: there is none; false: the script has done enough. may_come(id, place) is false
--                   for a task that was set aside
--   charge(cost)    that one is let out
--   index(id, place), a task is parked again
--   keep()          at the end
local MOST_HELD = 2147483648 -- 2^31
local AT_FIRST, SOME = 3, 20 -- shares that are read at first, and then
local STEP, CHOICE = 0.2, 0.5 -- what a step takes, in tasks that are let out; and what it takes besides to let out one of a share
turns = {}
local in_code, held, clock, marks
local least, bound -- shares by their tags, the least of all; no other one has less than that
local tags, gone, dropped, after -- what has changed

local function keep()
    local changed = {precise(-clock), CLOCK}
    for share, tag in next, tags do
        changed[#changed + 1] = precise(tag)
        changed[#changed + 1] = share
    end
    call('ZADD', TURNS, unpack(changed))
    if #gone > 0 then call('ZREM', TURNS, unpack(gone)) end
    if #dropped > 0 then call('ZREM', SHARES, unpack(dropped)) end
    tags, gone, dropped, after = {}, {}, {}, {}
end
turns.keep = keep

local function read(number)
    local got = call('ZRANGE', TURNS, 0, MARKS + number - 1, 'WITHSCORES')
    marks, least, bound = {}, {}, math.huge
    for i = 1, #got, 2 do
        local tag = got[i + 1] + 0
        if tag < 0 then marks[got[i]] = -tag else least[#least + 1] = {got[i], tag} end
    end
    if #got == 2 * (MARKS + number) then bound = least[#least][2] end
end

local function begins_now(some)
    for _, share in ipairs(some) do call('ZADD', TURNS, 'XX', precise(clock), share) end
    if #some > 0 then least = nil end
end

-- Those whose weight was changed last begin at the present: what they have had was at the weight that they had.
local function heed_changes(since)
    local last = 0
    for at, share in string.gmatch(shares.changes() or '', '(%d+) (%S*) ') do
        last = tonumber(at)
        if last > since then begins_now({share}) end
    end
    if last > since then call('ZADD', TURNS, int(-last), SINCE) end
    return last
end

-- Those that were held back by other weights than hold now may go on: some of them. Were there any?
local function let_go()
    local some = call('ZRANGEBYSCORE', TURNS, int(HELD), '(' .. int(held), 'LIMIT', 0, SOME)
    if #some == 0 then some = call('ZRANGEBYSCORE', TURNS, '(' .. int(held), '+inf', 'LIMIT', 0, SOME) end
    begins_now(some)
    did(#some * STEP)
    return #some > 0
end

local function index(id, place)
    local share = shares.of(call('HGET', MESSAGES, id) or '}}') or ''
    keep()
    if call('ZADD', SHARES, 0, shares.entry(share, place, id)) == 1 then shares.add(share) end
    least = nil
end
turns.index = index

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

function turns.use(weights)
    read(AT_FIRST)
    clock = marks[CLOCK]
    if not clock then return false end
    in_code, tags, gone, dropped, after = weights, {}, {}, {}, {}
    held = HELD + (heed_changes(marks[SINCE]) + (match(weights, '^%d+') or 0)) % MOST_HELD
    if marks[SOME_HELD] and not let_go() and call('ZCOUNT', TURNS, int(HELD), '+inf') == 0 then
        call('ZREM', TURNS, SOME_HELD)
    end
    index_some()
    return true
end

local function weight_in_code(share)
    local _, at = string.find(in_code, '\0' .. share .. ' ', 1, true)
    return at and match(in_code, '^[^%z]+', at + 1) or 1
end

function turns.next(may_come)
    while room() > 0 do
        if not least or not least[1] then
            keep()
            read(SOME)
        end
        local share, tag = unpack(least[1] or {})
        if not share or tag >= HELD then
            keep()
            if not let_go() and not index_some() then return nil end
        else
            local from = after[share] and '(' .. after[share] or '[' .. share .. '\0'
            local entry = call('ZRANGEBYLEX', SHARES, from, '(' .. share .. '\1', 'LIMIT', 0, 1)[1]
            local weight = entry and shares.weight(share, weight_in_code(share))
            if not entry then
                clock = max(clock, tag)
                gone[#gone + 1] = share
                tags[share] = nil
                table.remove(least, 1)
            elseif weight == 0 then
                call('ZADD', TURNS, int(held), share, -0.5, SOME_HELD)
                tags[share] = nil
                table.remove(least, 1)
            else
                local place, id = match(entry, '^[^%z]*%z(%d+)%z(.*)$')
                turns.entry, turns.weight = entry, weight
                if (call('ZSCORE', PARKED, id) or -1) - place == 0 and may_come(id, place) then return id end
                dropped[#dropped + 1] = entry
                after[share] = entry
            end
            did(STEP)
        end
    end
    if call('EXISTS', PARKED) + call('EXISTS', ASIDE) > 0 then return false end
end

function turns.charge(cost)
    local share, tag = unpack(table.remove(least, 1))
    clock = max(clock, tag)
    did(CHOICE)
    local new = min(clock + cost / turns.weight, HELD - 1)
    tags[share], after[share] = new, turns.entry
    dropped[#dropped + 1] = turns.entry
    if new < bound then
        local at = #least
        while at > 0 and (least[at][2] > new or least[at][2] == new and least[at][1] > share) do at = at - 1 end
        table.insert(least, at + 1, {share, new})
    end
end
