-- The schema in force on PostgreSQL. A new database is made from this file; sqlite.sql has the same sections in the
-- same order. To change it, read crates/store/src/schema.rs.
--
-- Ids are text that sorts by creation time, by its bytes. They hold that time, so no table repeats it.
-- Times are milliseconds since the Unix epoch.

-- ---- Server state ----

-- One row: the version of this schema. Every table has a primary key: a publication of all tables, as logical
-- replication and change capture make it, stops the updates of a table without one.
CREATE TABLE tintype (
    version int PRIMARY KEY
);

-- The database's time, by which all leases and waits are measured, unless a test gives its own.
CREATE FUNCTION tintype_now(given bigint) RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE AS
    $$ SELECT coalesce(given, floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint) $$;

-- `cursor` signs the cursors of lists. `files` is the marker of the file store that belongs to this database.
-- `move` is the id of the move by `tintype migrate` that filled this database.
CREATE TABLE secrets (
    name  text PRIMARY KEY,
    value bytea NOT NULL
);

-- Sweeps over the result files: one for each day, by its name, and one for what removed tasks leave. A process that
-- takes a sweep postpones it, so that no other process does the same work. A sweep without a row is due.
CREATE TABLE sweeps (
    name   text COLLATE "C" PRIMARY KEY,
    due_at bigint NOT NULL
);

-- ---- Accounts ----

-- A row hardly ever changes: transactions lock it while they charge or refund. The balance is that of the newest ledger
-- entry, and unfinished tasks are counted in the queue. So no account has dead tuples, however long a reader keeps an
-- old snapshot.
CREATE TABLE accounts (
    id          text COLLATE "C" PRIMARY KEY,
    name        text COLLATE "C" NOT NULL UNIQUE,
    -- Administrators' accounts see and manage all others.
    admin       boolean NOT NULL DEFAULT false,
    -- A balance that falls below this sends `credits.low`.
    low_balance bigint CHECK (low_balance > 0),
    -- The keys of a disabled account are not valid.
    disabled_at bigint,
    -- A deleted account is disabled for good. Its row stays, because its ledger does.
    deleted_at  bigint
);

-- ---- People ----

CREATE TABLE people (
    id                text COLLATE "C" PRIMARY KEY,
    account_id        text COLLATE "C" NOT NULL REFERENCES accounts (id),
    name              text COLLATE "C" NOT NULL UNIQUE,
    role              text NOT NULL CHECK (role IN ('viewer', 'member', 'owner')),
    -- An Argon2id hash in PHC format; null for people who sign in by link or provider only.
    password          text,
    -- Set by the content policy; see the strikes below.
    suspended_at      bigint,
    suspended_for     text CHECK ((suspended_for IS NULL) = (suspended_at IS NULL)),
    -- The secret shared with an authenticator app, kept as it is because codes are computed with it.
    factor_secret     bytea,
    -- The last time step whose code was used, because a code works once.
    factor_step       bigint CHECK ((factor_step IS NULL) = (factor_secret IS NULL)),
    -- The latest end of all sessions. A journey to a provider that began earlier signs nobody in.
    sessions_ended_at bigint
);

-- Lists of an account's people.
CREATE INDEX people_of_account ON people (account_id);

CREATE TABLE sessions (
    -- The hash of the token in the cookie.
    hash        bytea PRIMARY KEY,
    -- Names the session on the studio's pages.
    id          text COLLATE "C" NOT NULL UNIQUE,
    person_id   text COLLATE "C" NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    seen_at     bigint NOT NULL,
    expires_at  bigint NOT NULL,
    agent       text NOT NULL,
    -- Whether an OpenID Connect provider signed the person in, which is then responsible for second factors.
    by_provider boolean NOT NULL DEFAULT false
);

-- Lists and ends of a person's sessions.
CREATE INDEX sessions_of_person ON sessions (person_id);

-- Links that sign a person in once: the sign-in deletes its link.
CREATE TABLE sign_in_links (
    hash       bytea PRIMARY KEY,
    person_id  text COLLATE "C" NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    expires_at bigint NOT NULL
);

-- Ending all sessions of a person deletes the links, too.
CREATE INDEX links_of_person ON sign_in_links (person_id);

-- Invitations: each lets several people join an account, by a link that they share. An owner makes it.
CREATE TABLE invitations (
    id         text COLLATE "C" PRIMARY KEY,
    account_id text COLLATE "C" NOT NULL REFERENCES accounts (id),
    -- Who made it. An invitation goes with its maker.
    person_id  text COLLATE "C" NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    -- The hash of the token in the link.
    hash       bytea NOT NULL UNIQUE,
    role       text NOT NULL CHECK (role IN ('viewer', 'member', 'owner')),
    -- How many people may still join. Whoever takes the last place deletes the row.
    places     bigint NOT NULL CHECK (places BETWEEN 1 AND 100),
    expires_at bigint NOT NULL
);

-- Lists of an account's invitations.
CREATE INDEX invitations_of_account ON invitations (account_id, id);

-- The invitations of a person who is removed.
CREATE INDEX invitations_of_person ON invitations (person_id);

-- Hashes of the codes that stand in for the authenticator app: using one deletes it.
CREATE TABLE recovery_codes (
    person_id text COLLATE "C" NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    hash      bytea NOT NULL,
    PRIMARY KEY (person_id, hash)
);

-- Identities at OpenID Connect providers. A provider keeps a subject for good, even if its name or e-mail address
-- changes.
CREATE TABLE person_identities (
    issuer    text COLLATE "C" NOT NULL,
    subject   text COLLATE "C" NOT NULL,
    person_id text COLLATE "C" NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    PRIMARY KEY (issuer, subject),
    -- Also finds a person's identities.
    UNIQUE (person_id, issuer)
);

-- Attempts to sign up from one network on one day, in UTC. Deleted when the day is over.
CREATE TABLE sign_ups (
    source text COLLATE "C" NOT NULL,
    day    text COLLATE "C" NOT NULL,
    count  bigint NOT NULL CHECK (count > 0),
    PRIMARY KEY (source, day)
);

-- ---- Keys ----

CREATE TABLE api_keys (
    id              text COLLATE "C" PRIMARY KEY,
    account_id      text COLLATE "C" NOT NULL REFERENCES accounts (id),
    -- SHA-256 of the key, which cannot be read back.
    hash            bytea NOT NULL UNIQUE,
    name            text NOT NULL,
    -- The first characters of the key, to recognise it by.
    hint            text NOT NULL,
    -- The key at the beginning of a line of rotated keys. They share budget and rate limits.
    first_id        text COLLATE "C" NOT NULL,
    -- The person who made the key in the studio. Strikes of the key count for this person, too.
    made_by         text COLLATE "C",
    -- Requests a minute; null means the server's limit, 0 no limit.
    submit_rate     bigint,
    read_rate       bigint,
    -- Credits to spend in a period.
    budget          bigint CHECK (budget > 0),
    budget_period   text
        CHECK ((budget_period IS NULL) = (budget IS NULL) AND budget_period IN ('day', 'week', 'month')),
    -- Whether the operator set the budget. The owners of the account can then create no other key.
    operator_budget boolean NOT NULL DEFAULT false,
    expires_at      bigint,
    disabled        boolean NOT NULL DEFAULT false,
    revoked_at      bigint,
    -- The key was seen in a URL and should be rotated.
    leaked_at       bigint,
    -- Set by the content policy; see the strikes below.
    suspended_at    bigint,
    suspended_for   text CHECK ((suspended_for IS NULL) = (suspended_at IS NULL)),
    -- To the minute or so, so that a request seldom writes it.
    last_used_at    bigint
);

-- Lists of an account's keys.
CREATE INDEX keys_of_account ON api_keys (account_id);
-- Budgets and limits of a line of keys.
CREATE INDEX keys_of_line ON api_keys (first_id);

-- ---- Tasks ----

-- A removed task keeps its row, because its ledger entries point at it. Only an account that was just charged gets a
-- row, so no foreign key is checked for each.
CREATE TABLE tasks (
    id               text COLLATE "C" PRIMARY KEY,
    account_id       text COLLATE "C" NOT NULL,
    surface          text COLLATE "C" NOT NULL CHECK (surface IN ('api', 'web')),
    image_to_image   boolean NOT NULL,
    status           text NOT NULL DEFAULT 'processing' CHECK (status IN ('processing', 'completed', 'failed')),
    updated_at       bigint NOT NULL,
    -- The last claim, for the time that a task waited and the time that it took. A failed task has it if a worker held it
    -- until then.
    claimed_at       bigint,
    -- Callers no longer see the task from then on.
    removed_at       bigint CHECK (removed_at IS NULL OR status <> 'processing'),
    -- The HTTP request that created the task, to find its render in the log.
    request_id       text,
    -- JSON: the names of the result files.
    images           text CHECK ((images IS NOT NULL) = (status = 'completed') AND images <> '[]'),
    -- Why it failed: `policy`, `reference:0`, `engine`, `lost`, `expired`, `cancelled` or `operator`.
    cause            text,
    -- A sentence for the caller.
    error            text CHECK ((error IS NOT NULL) = (status = 'failed')),
    n                smallint NOT NULL CHECK (n BETWEEN 1 AND 4),
    aspect_ratio     text NOT NULL,
    -- JSON: the URLs as they were sent.
    reference_images text NOT NULL,
    prompt           text NOT NULL,
    -- JSON: the preset, and the settings for the engine. Null leaves all to the engine.
    settings         text,
    -- The person who created it in the studio.
    person_id        text COLLATE "C"
);

-- Lists of an account's tasks. With `removed_at` in it, always null, a page of ids is read from the index alone.
CREATE INDEX tasks_of_account ON tasks (account_id, surface, id, removed_at) WHERE removed_at IS NULL;

-- The gallery of a person's own tasks.
CREATE INDEX tasks_of_person ON tasks (account_id, person_id, id) WHERE removed_at IS NULL AND person_id IS NOT NULL;

-- Failed tasks whose prompts are kept, with the bytes of prompt and references. The oldest of an account are forgotten
-- when they exceed its share of the space.
CREATE TABLE failed_prompts (
    task_id    text COLLATE "C" PRIMARY KEY,
    account_id text COLLATE "C" NOT NULL REFERENCES accounts (id),
    bytes      bigint NOT NULL
);

-- The sum of an account's bytes, newest task first, from the index alone.
CREATE INDEX failed_prompts_of_account ON failed_prompts (account_id, task_id, bytes);

-- ---- Queue ----

-- Exactly the tasks that are processing. A row lives for a minute, so the table is vacuumed by the number of rows,
-- without pauses, and analysed hardly ever. Free space in its pages lets a claim or a renewal change a row without a
-- new index entry, because no index names a column that they change.
CREATE TABLE queue (
    task_id         text COLLATE "C" PRIMARY KEY,
    account_id      text COLLATE "C" NOT NULL,
    -- A released task is not claimed again before this.
    ready_at        bigint NOT NULL DEFAULT 0,
    -- The fencing token: each claim raises it, and every later write of the worker must match it.
    lease_epoch     bigint NOT NULL DEFAULT 0,
    -- Null while the task waits.
    lease_until     bigint,
    claimed_at      bigint,
    lost_leases     int NOT NULL DEFAULT 0,
    -- Only needed until the task has ended, so they are in this narrow table: the key that submitted the task, or the
    -- person who created it in the studio.
    key_id          text COLLATE "C",
    person_id       text COLLATE "C",
    -- So that a worker claims only tasks that its engine can do. It never changes.
    reference_count smallint NOT NULL DEFAULT 0,
    -- The engine that the task needs; empty if any will do. It never changes. Few tasks name one.
    engine          text COLLATE "C" NOT NULL DEFAULT '',
    -- Whether the caller of an API task would see previews.
    wants_previews  boolean NOT NULL DEFAULT false,
    -- Credits that the task took from expiring grants, for its refund: pairs of grant and credits in JSON.
    taken           text
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 20000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);

-- Claims, and the count of an account's unfinished tasks. Tasks of no engine and those of each engine are ranges of it,
-- so tasks that wait for another engine delay nobody. The collation sorts as that of the column does, but a look-up of
-- a task by its id alone cannot use this index: while the queue is empty, the planner would take it for as good as the
-- primary key.
CREATE INDEX queue_of_account ON queue (account_id, engine, task_id COLLATE "POSIX", reference_count);
-- Tasks that wait for an engine that is gone.
CREATE INDEX queue_named ON queue (engine) WHERE engine > '';

-- One row while the queue is paused: no worker claims a task.
CREATE TABLE queue_pause (
    id        bigint PRIMARY KEY CHECK (id = 1),
    paused_at bigint NOT NULL
);

-- Progress of attempts, reported about once a second. A row counts while the queue has the lease of its epoch; the
-- sweep for expired leases deletes the others. Unlogged: a report waits for no disk, and is sent again after a crash.
CREATE UNLOGGED TABLE progress (
    task_id     text COLLATE "C" PRIMARY KEY,
    lease_epoch bigint NOT NULL,
    started_at  bigint NOT NULL,
    -- Either steps, or a part of the work from 0 to 1, or nothing yet.
    step        bigint,
    steps       bigint,
    fraction    real
) WITH (fillfactor = 50);

-- The latest preview of an attempt, under the same rules as its progress.
CREATE UNLOGGED TABLE previews (
    task_id     text COLLATE "C" PRIMARY KEY,
    lease_epoch bigint NOT NULL,
    -- Rises with each preview of a task.
    number      bigint NOT NULL,
    png         bytea NOT NULL
);
-- A PNG does not get smaller.
ALTER TABLE previews ALTER COLUMN png SET STORAGE EXTERNAL;

-- ---- Ledger ----

-- Entries are never changed or deleted. A negative grant takes credits away.
CREATE TABLE ledger (
    id         bigint GENERATED ALWAYS AS IDENTITY,
    account_id text COLLATE "C" NOT NULL,
    kind       text NOT NULL CHECK (kind IN ('grant', 'charge', 'refund', 'expiry')),
    amount     bigint NOT NULL
        CHECK ((kind = 'grant' OR (amount < 0) = (kind IN ('charge', 'expiry'))) AND amount <> 0),
    -- The account's balance after the entry. The database itself refuses overspending.
    balance    bigint NOT NULL CHECK (balance >= 0),
    created_at bigint NOT NULL,
    task_id    text COLLATE "C" CHECK ((task_id IS NULL) = (kind IN ('grant', 'expiry'))),
    note       text,
    key_id     text COLLATE "C" CHECK (key_id IS NULL OR task_id IS NOT NULL),
    -- The entry of the grant that expired.
    grant_id   bigint CHECK ((grant_id IS NOT NULL) = (kind = 'expiry')),
    -- The newest entry of an account, which has its balance, is the end of a range of this key.
    PRIMARY KEY (account_id, id)
);

-- A task is charged once and refunded at most once, even if the program is wrong.
CREATE UNIQUE INDEX ledger_once ON ledger (task_id, kind) WHERE task_id IS NOT NULL;
-- A grant expires once, even if the program is wrong.
CREATE UNIQUE INDEX ledger_expiry_once ON ledger (grant_id) WHERE grant_id IS NOT NULL;
-- The credits that a key spent in a period, from the index alone.
CREATE INDEX ledger_of_key ON ledger (key_id, task_id) INCLUDE (amount) WHERE key_id IS NOT NULL;
-- The latest failures of an account.
CREATE INDEX refunds_of_account ON ledger (account_id, created_at) WHERE kind = 'refund';

-- Credits that expire, by the entry that brought them: a grant, or a refund of credits whose grant had expired. They
-- are part of the balance. A row is changed only under the lock of its account.
CREATE TABLE expiring_grants (
    entry_id   bigint PRIMARY KEY,
    account_id text COLLATE "C" NOT NULL REFERENCES accounts (id),
    amount     bigint NOT NULL CHECK (amount > 0),
    expires_at bigint NOT NULL,
    -- Credits that can still be spent.
    remaining  bigint NOT NULL CHECK (remaining BETWEEN 0 AND amount),
    -- Credits that were left when the grant expired; null until its expiry is in the ledger.
    lapsed     bigint CHECK (lapsed IS NULL OR (lapsed BETWEEN 0 AND amount AND remaining = 0))
);

-- Lists of an account's grants, expired ones included.
CREATE INDEX grants_of_account ON expiring_grants (account_id);
-- A charge takes from the grants that expire first.
CREATE INDEX live_grants ON expiring_grants (account_id, expires_at, entry_id) WHERE lapsed IS NULL;
-- The sweep for expired grants.
CREATE INDEX grants_due ON expiring_grants (expires_at) WHERE lapsed IS NULL;

-- ---- Calls ----

-- Calls of the OpenAI dialect, of tools (MCP) and of the studio's script, by which a repeated call finds the task of its
-- earlier attempt.
CREATE TABLE calls (
    task_id      text COLLATE "C" PRIMARY KEY,
    -- The first key that its key was rotated from; in the studio the person who sent it.
    key_id       text COLLATE "C" NOT NULL,
    -- SHA-256 of the fields of the call, and of its idempotency key.
    digest       bytea NOT NULL,
    idempotency  bytea,
    -- The latest attempt that took the task, counted from 0.
    attempt      bigint NOT NULL,
    -- The call that waits for the task; null once its caller has hung up.
    holder       bigint,
    delivered_at bigint
);

-- An idempotency key has one task.
CREATE UNIQUE INDEX calls_by_idempotency ON calls (key_id, idempotency) WHERE idempotency IS NOT NULL;
-- Without an idempotency key: the earlier attempt whose answer was not delivered.
CREATE INDEX undelivered_calls ON calls (key_id, digest) WHERE idempotency IS NULL AND delivered_at IS NULL;
-- The calls of a key or a person, when the account or the person is removed.
CREATE INDEX calls_of_key ON calls (key_id);

-- ---- Gallery ----

-- Search terms of studio tasks. Each begins with a tag of its account, so a search reads no other account's entries.
CREATE TABLE prompts (
    task_id text COLLATE "C" PRIMARY KEY,
    words   tsvector NOT NULL
);

-- Without a list of pending entries, which each search would have to read.
CREATE INDEX prompts_by_word ON prompts USING gin (words) WITH (fastupdate = off);

-- Tasks whose prompts are yet to be indexed, so that no submit waits for the index.
CREATE TABLE unindexed (
    task_id text COLLATE "C" PRIMARY KEY
);

CREATE TABLE stars (
    task_id   text COLLATE "C" NOT NULL,
    person_id text COLLATE "C" NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    PRIMARY KEY (task_id, person_id)
);

-- Pages of a person's starred tasks.
CREATE INDEX stars_of_person ON stars (person_id, task_id);

CREATE TABLE boards (
    id         text COLLATE "C" PRIMARY KEY,
    account_id text COLLATE "C" NOT NULL REFERENCES accounts (id),
    name       text COLLATE "C" NOT NULL,
    -- The only person who sees it; null for a board of the whole account.
    person_id  text COLLATE "C" REFERENCES people (id) ON DELETE CASCADE
);

-- Also lists an account's boards.
CREATE UNIQUE INDEX boards_by_name ON boards (account_id, coalesce(person_id, ''), name);

-- The boards of a person who is removed.
CREATE INDEX boards_of_person ON boards (person_id) WHERE person_id IS NOT NULL;

CREATE TABLE board_tasks (
    board_id text COLLATE "C" NOT NULL REFERENCES boards (id) ON DELETE CASCADE,
    task_id  text COLLATE "C" NOT NULL,
    PRIMARY KEY (board_id, task_id)
);

-- The boards of a task, when it is shown or removed.
CREATE INDEX boards_of_task ON board_tasks (task_id);

-- Links that show a task or a board to everybody who has one. The secret part of a link follows from its id, so none is
-- stored; see crates/domain/src/signed_tokens.rs.
CREATE TABLE shared_links (
    id           text COLLATE "C" PRIMARY KEY,
    account_id   text COLLATE "C" NOT NULL REFERENCES accounts (id),
    -- Who made it. A link goes with its maker.
    person_id    text COLLATE "C" NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    task_id      text COLLATE "C",
    board_id     text COLLATE "C" REFERENCES boards (id) ON DELETE CASCADE,
    -- Whether its page shows the prompts.
    with_prompts boolean NOT NULL,
    -- Null for a link that works until it is revoked.
    expires_at   bigint,
    views        bigint NOT NULL DEFAULT 0,
    CHECK ((task_id IS NULL) <> (board_id IS NULL))
);

-- Pages of an account's links.
CREATE INDEX shared_links_of_account ON shared_links (account_id, id);

-- The links of a person, a task or a board that is removed.
CREATE INDEX shared_links_of_person ON shared_links (person_id);
CREATE INDEX shared_links_of_task ON shared_links (task_id) WHERE task_id IS NOT NULL;
CREATE INDEX shared_links_of_board ON shared_links (board_id) WHERE board_id IS NOT NULL;

-- The sweep of expired links.
CREATE INDEX shared_links_due ON shared_links (expires_at) WHERE expires_at IS NOT NULL;

-- The bin: deleted tasks, which are hidden first so that they can be restored, then erased, and forgotten here once their
-- files are gone.
CREATE TABLE deletions (
    task_id    text COLLATE "C" PRIMARY KEY,
    account_id text COLLATE "C" NOT NULL REFERENCES accounts (id),
    deleted_at bigint NOT NULL,
    erased     boolean NOT NULL DEFAULT false,
    -- The task can no longer be restored: the next sweep erases it.
    is_final   boolean NOT NULL DEFAULT false
);

-- The sweep that erases.
CREATE INDEX deletions_due ON deletions (erased, deleted_at);

-- The same for deletions that were made final.
CREATE INDEX deletions_final ON deletions (task_id) WHERE is_final AND NOT erased;

-- Pages of an account's bin.
CREATE INDEX deletions_of_account ON deletions (account_id, task_id);

-- ---- Uploads ----

-- Pictures that people bring as references. The row is written before the file, so that a sweep knows the owner of the
-- file. A removed upload keeps its row for some days.
CREATE TABLE uploads (
    id         text COLLATE "C" PRIMARY KEY,
    account_id text COLLATE "C" NOT NULL REFERENCES accounts (id),
    surface    text NOT NULL CHECK (surface IN ('api', 'web')),
    -- The name of the file; null until it is stored.
    name       text,
    width      bigint,
    height     bigint,
    updated_at bigint NOT NULL,
    removed_at bigint,
    -- The person who uploaded it in the studio; null for one of an earlier release.
    person_id  text COLLATE "C",
    -- Whether it was painted: it says which part of a picture changes.
    is_mask    boolean NOT NULL DEFAULT false
);

-- Lists of an account's uploads.
CREATE INDEX uploads_of_account ON uploads (account_id, surface, id) WHERE removed_at IS NULL;
-- The sweep that removes files.
CREATE INDEX removed_uploads ON uploads (removed_at) WHERE removed_at IS NOT NULL;

-- ---- Strikes ----

-- Tasks that the content policy refused, held against their key until the key is enabled again or they are too old to
-- count.
CREATE TABLE strikes (
    task_id    text COLLATE "C" PRIMARY KEY,
    key_id     text COLLATE "C" NOT NULL REFERENCES api_keys (id),
    created_at bigint NOT NULL
);

-- The recent strikes of a key.
CREATE INDEX strikes_of_key ON strikes (key_id, created_at);

-- The same for the people who created tasks in the studio.
CREATE TABLE person_strikes (
    task_id    text COLLATE "C" PRIMARY KEY,
    person_id  text COLLATE "C" NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    created_at bigint NOT NULL
);

-- The recent strikes of a person.
CREATE INDEX strikes_of_person ON person_strikes (person_id, created_at);

-- ---- Webhooks ----

-- Receivers of an account's events.
CREATE TABLE endpoints (
    id               text COLLATE "C" PRIMARY KEY,
    account_id       text COLLATE "C" NOT NULL REFERENCES accounts (id),
    url              text NOT NULL,
    -- The names of the events it subscribes to, separated by spaces.
    events           text NOT NULL,
    added_by         text NOT NULL CHECK (added_by IN ('operator', 'owner')),
    -- Kept as it is, because it signs. After a rotation the old one signs too, for a while.
    secret           text NOT NULL,
    old_secret       text,
    old_secret_until bigint,
    -- An endpoint that fails for days is disabled.
    failing_since    bigint,
    -- The receiver has asked for a pause.
    resume_at        bigint,
    disabled_at      bigint,
    disabled_for     text CHECK (disabled_for IN ('request', 'gone', 'failing')),
    CHECK ((old_secret IS NULL) = (old_secret_until IS NULL)),
    CHECK ((disabled_at IS NULL) = (disabled_for IS NULL))
);

-- The endpoints that get an event of an account.
CREATE INDEX endpoints_of_account ON endpoints (account_id);

-- Events on their way to one endpoint each, written in the commit of the change they report.
CREATE TABLE deliveries (
    id              text COLLATE "C" PRIMARY KEY,
    endpoint_id     text COLLATE "C" NOT NULL REFERENCES endpoints (id) ON DELETE CASCADE,
    -- The end of a task has the id of the task, so that a receiver recognises repeats.
    event_id        text COLLATE "C" NOT NULL,
    type            text NOT NULL,
    -- JSON; null for the end of a task, whose data are read from the task.
    data            text,
    happened_at     bigint NOT NULL,
    attempts        bigint NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    -- The claim of an attempt moves this past the attempt's end, so a process that dies leaves the delivery to another.
    next_attempt_at bigint,
    delivered_at    bigint,
    -- The receiver's last HTTP status, or the reason why there was none.
    status          bigint,
    trouble         text,
    CHECK (delivered_at IS NULL OR next_attempt_at IS NULL)
);

-- Lists of an endpoint's deliveries.
CREATE INDEX deliveries_of_endpoint ON deliveries (endpoint_id, id);
-- Claims of due deliveries.
CREATE INDEX deliveries_waiting ON deliveries (endpoint_id, next_attempt_at) WHERE next_attempt_at IS NOT NULL;

-- ---- Workers ----

-- Reports of worker processes, sent every few seconds; few rows that change all the time. The row of an engine that is
-- down, or whose worker has ended, stays for a day: tasks that only this engine can do wait for it.
CREATE TABLE workers (
    id             text COLLATE "C" PRIMARY KEY,
    engine         text COLLATE "C" NOT NULL,
    max_references int NOT NULL CHECK (max_references >= 0),
    slots          int NOT NULL CHECK (slots > 0),
    -- Mean time of an attempt and of each of its images; null until one has ended.
    mean_ms        bigint CHECK (mean_ms > 0),
    image_ms       bigint CHECK (image_ms > 0),
    is_available   boolean NOT NULL,
    seen_at        bigint NOT NULL,
    masks          boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);

-- ---- Audit log ----

-- Changes to accounts, credits, keys, people, the queue or a task. A row has the names of people and keys at that time,
-- because they may be gone when it is read.
CREATE TABLE audit_log (
    id         text COLLATE "C" PRIMARY KEY,
    actor      text NOT NULL,
    person_id  text COLLATE "C",
    via        text NOT NULL CHECK (via IN ('command', 'studio', 'server')),
    -- The network address, or the name of the machine.
    source     text,
    action     text NOT NULL,
    account_id text COLLATE "C",
    subject    text,
    detail     text
);

-- Pages of an account's entries.
CREATE INDEX audit_log_of_account ON audit_log (account_id, id);
