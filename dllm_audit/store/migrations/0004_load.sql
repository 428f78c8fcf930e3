-- How requests came, how answers were delivered, and what the rows of each sitting did.
ALTER TABLE runs ADD COLUMN load VARCHAR DEFAULT 'closed';       -- 'closed', 'offline' or 'open'
ALTER TABLE runs ADD COLUMN arrival_rate DOUBLE;                 -- requests per second of an open loop
ALTER TABLE requests ADD COLUMN queue_seconds DOUBLE;            -- of the waiting, before a row took the request on
ALTER TABLE requests ADD COLUMN delivered_seconds DOUBLE;        -- until the first answer text could be at a client
ALTER TABLE requests ADD COLUMN block_seconds DOUBLE[];          -- until each block closed

CREATE TABLE sittings (
    run_id           VARCHAR NOT NULL,
    sitting          INTEGER NOT NULL,
    rows             INTEGER,                                    -- that could be in flight together
    ramp_seconds     DOUBLE,                                     -- until so many first were; NULL: they never were
    drain_seconds    DOUBLE,                                     -- from the last moment that they were to the end
    idle_seconds     DOUBLE NOT NULL,                            -- in which no request was there
    compiled_graphs  INTEGER NOT NULL                            -- by torch, inside the timed region
);
