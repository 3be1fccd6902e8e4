-- Receivers that are told of the events of an account. The secret signs, so it is kept as it is; after a rotation the
-- old one signs too, until its end. `events` holds names with a space between two.
CREATE TABLE endpoints (
    id               text COLLATE "C" PRIMARY KEY,
    account_id       text COLLATE "C" NOT NULL REFERENCES accounts (id),
    url              text NOT NULL,
    events           text NOT NULL,
    added_by         text NOT NULL CHECK (added_by IN ('operator', 'owner')),
    secret           text NOT NULL,
    old_secret       text,
    old_secret_until bigint,
    failing_since    bigint,
    resume_at        bigint,
    disabled_at      bigint,
    disabled_for     text CHECK (disabled_for IN ('request', 'gone', 'failing')),
    CHECK ((old_secret IS NULL) = (old_secret_until IS NULL)),
    CHECK ((disabled_at IS NULL) = (disabled_for IS NULL))
);
CREATE INDEX endpoints_of_account ON endpoints (account_id);

-- Events on their way to an endpoint each, written in the commit of what they tell of. The end of a task has the id of the
-- task, and its data are those of the task. An attempt that has begun moves the next one to a time at which it is over.
CREATE TABLE deliveries (
    id              text COLLATE "C" PRIMARY KEY,
    endpoint_id     text COLLATE "C" NOT NULL REFERENCES endpoints (id) ON DELETE CASCADE,
    event_id        text COLLATE "C" NOT NULL,
    type            text NOT NULL,
    data            text,
    happened_at     bigint NOT NULL,
    attempts        bigint NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    next_attempt_at bigint,
    delivered_at    bigint,
    status          bigint,
    trouble         text,
    CHECK (delivered_at IS NULL OR next_attempt_at IS NULL)
);
CREATE INDEX deliveries_waiting ON deliveries (endpoint_id, next_attempt_at) WHERE next_attempt_at IS NOT NULL;
CREATE INDEX deliveries_of_endpoint ON deliveries (endpoint_id, id);

-- An id of this millisecond, as IdSource in crates/domain/src/model.rs makes it.
CREATE FUNCTION tintype_id(made_at bigint) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    alphabet CONSTANT text := '-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz';
    id text := '';
BEGIN
    FOR place IN REVERSE 7..0 LOOP
        id := id || substr(alphabet, (((made_at + (1::bigint << 46)) >> (6 * place)) & 63)::integer + 1, 1);
    END LOOP;
    FOR place IN 1..13 LOOP
        id := id || substr(alphabet, floor(random() * 64)::integer + 1, 1);
    END LOOP;
    RETURN id;
END $$;

-- Tells the endpoints of an account of an event: of type `kind`, with the id `event`, or a new one if that is NULL. It sees
-- all that was committed before the call, which the snapshot of the statement around it may not: an endpoint that was
-- added while the statement waited for a lock gets the event. A statement for many accounts calls it for each. Returns
-- the number of endpoints.
CREATE FUNCTION tintype_tell(account text, kind text, event text, details text, happened bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    told bigint;
    id_of_event CONSTANT text := coalesce(event, tintype_id(happened));
BEGIN
    -- An endpoint that somebody removes at the same time is passed over.
    INSERT INTO deliveries (id, endpoint_id, event_id, type, data, happened_at, next_attempt_at)
    SELECT tintype_id(happened), e.id, id_of_event, kind, details, happened, happened FROM endpoints e
    WHERE e.account_id = account COLLATE "C" AND e.disabled_at IS NULL
        AND position(' ' || kind || ' ' IN ' ' || e.events || ' ') > 0
    FOR KEY SHARE OF e;
    GET DIAGNOSTICS told = ROW_COUNT;
    RETURN told;
END $$;
