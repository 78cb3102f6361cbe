-- Pass two, refused: one time for a slot in every limit of the request.
--
-- A request stands in the line of each of its limits, at one time that suits all of them: in the first gaps that fit together, or
-- behind all other requests (conservative backfilling). The time before it stays open to requests that delay no other one.
--
-- Uses NUMBER; limits; joint, in_line and latest, see check_all_limits.lua.
-- Gives, where there are several limits:
--   fits()      may the permits be taken at the joint time, ahead of now?
--   line_up()   the slot that is proposed, which is kept as in_line and latest say. A second result: there is no room to wait
if NUMBER > 1 then
    function fits()
        local waits = in_line ~= '' and joint <= latest -- it may keep a slot instead
        for i = 1, #limits do
            if not limits[i].algorithm.fits(limits[i], now, joint, waits) then return false end
        end
        return true
    end

    local ROUNDS_OF_PLACES = 16

    -- The first time, `joint` or later, that all limits have a place for.
    local function joint_place()
        local at = joint
        for round = 1, ROUNDS_OF_PLACES do
            local before = at
            for i = 1, #limits do
                at = limits[i].algorithm.place(limits[i], now, at)
            end
            if at == before then return at end
            if round > ROUNDS_OF_PLACES / 2 then at = at + ceil((at - now) / 4) end -- many gaps, each too narrow for another limit
        end
        for _ = 1, 2 do
            for i = 1, #limits do
                at = limits[i].algorithm.place(limits[i], now, at, true)
            end
        end
        return at
    end

    -- A request that has a slot in every limit, and comes before it, keeps it.
    local function kept_place()
        local at = joint
        for i = 1, #limits do
            local due = limits[i].algorithm.due(limits[i])
            if not due or due <= now then return nil end
            at = max(at, due)
        end
        return at
    end

    local function price(limit)
        return limit.cost * limit.period / limit.count
    end

    function line_up()
        local at = kept_place()
        if at then return at end
        local fastest, slowest = limits[1], limits[1]
        for i = 1, #limits do
            if price(limits[i]) < price(fastest) then fastest = limits[i] end
            if price(limits[i]) > price(slowest) then slowest = limits[i] end
        end
        if in_line ~= '' then fastest.beside = price(slowest) end
        at = joint_place()
        for i = 1, #limits do
            if limits[i].full then return limits[i].full, true end
        end
        if at <= latest and in_line ~= '' then
            for i = 1, #limits do limits[i].algorithm.claim(limits[i], now, in_line, at) end
        elseif at == now then -- a permit is there, for requests that are due before it
            for i = 1, #limits do at = max(at, limits[i].patience or now) end
        end
        return at
    end
end
