-- Ids are text that sorts by creation time, by its bytes; they hold that time, so no table repeats it.
-- Times are milliseconds since the Unix epoch.

-- One row: the schema's version.
CREATE TABLE tintype (
    version int NOT NULL
);
INSERT INTO tintype VALUES (0);

-- The database's time, the only one that leases go by, unless a test gives its own.
CREATE FUNCTION tintype_now(given bigint) RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE AS
    $$ SELECT coalesce(given, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) $$;

CREATE TABLE secrets (
    name  text PRIMARY KEY,
    value bytea NOT NULL
);

-- Room in each page lets a balance change without a new index entry.
CREATE TABLE accounts (
    id         text COLLATE "C" PRIMARY KEY,
    name       text COLLATE "C" NOT NULL UNIQUE,
    balance    bigint NOT NULL CHECK (balance >= 0),
    unfinished bigint NOT NULL DEFAULT 0 CHECK (unfinished >= 0)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE api_keys (
    id          text COLLATE "C" PRIMARY KEY,
    account_id  text COLLATE "C" NOT NULL REFERENCES accounts (id),
    hash        bytea NOT NULL UNIQUE,
    name        text NOT NULL,
    hint        text NOT NULL,
    submit_rate bigint,
    read_rate   bigint,
    expires_at  bigint,
    disabled    boolean NOT NULL DEFAULT false,
    revoked_at  bigint,
    leaked_at   bigint
);

-- One partition for each month, by the time in the id. Only an account that was just charged gets a row,
-- so no foreign key is looked up for each.
CREATE TABLE tasks (
    id               text COLLATE "C" PRIMARY KEY,
    account_id       text COLLATE "C" NOT NULL,
    surface          text COLLATE "C" NOT NULL CHECK (surface IN ('api', 'web')),
    image_to_image   boolean NOT NULL,
    status           text NOT NULL DEFAULT 'processing' CHECK (status IN ('processing', 'completed', 'failed')),
    updated_at       bigint NOT NULL,
    images           text CHECK ((images IS NOT NULL) = (status = 'completed') AND images <> '[]'),
    error            text CHECK ((error IS NOT NULL) = (status = 'failed')),
    n                smallint NOT NULL CHECK (n BETWEEN 1 AND 4),
    aspect_ratio     text NOT NULL,
    reference_images text NOT NULL,
    prompt           text NOT NULL
) PARTITION BY RANGE (id);

CREATE INDEX tasks_of_account ON tasks (account_id, surface, id);

-- Exactly the tasks that are processing. A row waits while lease_until is null. Its rows live for a minute, so
-- it is vacuumed by their number, without pauses, and analysed hardly ever.
CREATE TABLE queue (
    task_id     text COLLATE "C" PRIMARY KEY,
    account_id  text COLLATE "C" NOT NULL,
    ready_at    bigint NOT NULL DEFAULT 0,
    lease_epoch bigint NOT NULL DEFAULT 0,
    lease_until bigint,
    lost_leases int NOT NULL DEFAULT 0
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 20000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);

CREATE INDEX queue_waiting ON queue (account_id, task_id, ready_at) WHERE lease_until IS NULL;
CREATE INDEX queue_leased ON queue (lease_until) WHERE lease_until IS NOT NULL;

CREATE TABLE ledger (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account_id text COLLATE "C" NOT NULL,
    kind       text NOT NULL CHECK (kind IN ('grant', 'charge', 'refund')),
    amount     bigint NOT NULL CHECK ((amount < 0) = (kind = 'charge') AND amount <> 0),
    balance    bigint NOT NULL CHECK (balance >= 0),
    created_at bigint NOT NULL,
    task_id    text COLLATE "C" CHECK ((task_id IS NULL) = (kind = 'grant')),
    note       text
);

CREATE INDEX ledger_of_account ON ledger (account_id, id);
-- A task is charged once and refunded at most once, whatever the code above does.
CREATE UNIQUE INDEX ledger_once ON ledger (task_id, kind) WHERE task_id IS NOT NULL;
