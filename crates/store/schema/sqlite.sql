-- The schema in force on SQLite. A new database is made from this file; postgres.sql has the same sections in the same
-- order. The pragma `user_version` holds its version. To change it, read crates/store/src/schema.rs.
--
-- Ids are text that sorts by creation time. They hold that time, so no table repeats it.
-- Times are milliseconds since the Unix epoch.

-- ---- Server state ----

-- `cursor` signs the cursors of lists. `files` is the marker of the file store that belongs to this database.
-- `move` and `moved_to` belong to a move by `tintype migrate`.
CREATE TABLE secrets (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Sweeps over the result files: one for each day, by its name, and one for what removed tasks leave. A process that
-- takes a sweep postpones it, so that no other process does the same work. A sweep without a row is due.
CREATE TABLE sweeps (
    name   TEXT PRIMARY KEY,
    due_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- ---- Accounts ----

CREATE TABLE accounts (
    id          TEXT PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE,
    -- Administrators' accounts see and manage all others.
    admin       INTEGER NOT NULL DEFAULT 0,
    -- A balance that falls below this sends `credits.low`.
    low_balance INTEGER CHECK (low_balance > 0),
    -- The keys of a disabled account are not valid.
    disabled_at INTEGER,
    -- A deleted account is disabled for good. Its row stays, because its ledger does.
    deleted_at  INTEGER
) STRICT, WITHOUT ROWID;

-- ---- People ----

CREATE TABLE people (
    id                TEXT PRIMARY KEY,
    account_id        TEXT NOT NULL REFERENCES accounts (id),
    name              TEXT NOT NULL UNIQUE,
    role              TEXT NOT NULL CHECK (role IN ('viewer', 'member', 'owner')),
    -- An Argon2id hash in PHC format; null for people who sign in by link or provider only.
    password          TEXT,
    -- Set by the content policy; see the strikes below.
    suspended_at      INTEGER,
    suspended_for     TEXT CHECK ((suspended_for IS NULL) = (suspended_at IS NULL)),
    -- The secret shared with an authenticator app, kept as it is because codes are computed with it.
    factor_secret     BLOB,
    -- The last time step whose code was used, because a code works once.
    factor_step       INTEGER CHECK ((factor_step IS NULL) = (factor_secret IS NULL)),
    -- The latest end of all sessions. A journey to a provider that began earlier signs nobody in.
    sessions_ended_at INTEGER
) STRICT, WITHOUT ROWID;

-- Lists of an account's people.
CREATE INDEX people_of_account ON people (account_id);

CREATE TABLE sessions (
    -- The hash of the token in the cookie.
    hash        BLOB PRIMARY KEY,
    -- Names the session on the studio's pages.
    id          TEXT NOT NULL UNIQUE,
    person_id   TEXT NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    seen_at     INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    agent       TEXT NOT NULL,
    -- Whether an OpenID Connect provider signed the person in, which is then responsible for second factors.
    by_provider INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- Lists and ends of a person's sessions.
CREATE INDEX sessions_of_person ON sessions (person_id);

-- Links that sign a person in once: the sign-in deletes its link.
CREATE TABLE sign_in_links (
    hash       BLOB PRIMARY KEY,
    person_id  TEXT NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Ending all sessions of a person deletes the links, too.
CREATE INDEX links_of_person ON sign_in_links (person_id);

-- Invitations: each lets several people join an account, by a link that they share. An owner makes it.
CREATE TABLE invitations (
    id         TEXT PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    -- Who made it. An invitation goes with its maker.
    person_id  TEXT NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    -- The hash of the token in the link.
    hash       BLOB NOT NULL UNIQUE,
    role       TEXT NOT NULL CHECK (role IN ('viewer', 'member', 'owner')),
    -- How many people may still join. Whoever takes the last place deletes the row.
    places     INTEGER NOT NULL CHECK (places BETWEEN 1 AND 100),
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Lists of an account's invitations.
CREATE INDEX invitations_of_account ON invitations (account_id, id);

-- The invitations of a person who is removed.
CREATE INDEX invitations_of_person ON invitations (person_id);

-- Hashes of the codes that stand in for the authenticator app: using one deletes it.
CREATE TABLE recovery_codes (
    person_id TEXT NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    hash      BLOB NOT NULL,
    PRIMARY KEY (person_id, hash)
) STRICT, WITHOUT ROWID;

-- Identities at OpenID Connect providers. A provider keeps a subject for good, even if its name or e-mail address
-- changes.
CREATE TABLE person_identities (
    issuer    TEXT NOT NULL,
    subject   TEXT NOT NULL,
    person_id TEXT NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    PRIMARY KEY (issuer, subject),
    -- Also finds a person's identities.
    UNIQUE (person_id, issuer)
) STRICT, WITHOUT ROWID;

-- Attempts to sign up from one network on one day, in UTC. Deleted when the day is over.
CREATE TABLE sign_ups (
    source TEXT NOT NULL,
    day    TEXT NOT NULL,
    count  INTEGER NOT NULL CHECK (count > 0),
    PRIMARY KEY (source, day)
) STRICT, WITHOUT ROWID;

-- ---- Keys ----

CREATE TABLE api_keys (
    id              TEXT PRIMARY KEY,
    account_id      TEXT NOT NULL REFERENCES accounts (id),
    -- SHA-256 of the key, which cannot be read back.
    hash            BLOB NOT NULL UNIQUE,
    name            TEXT NOT NULL,
    -- The first characters of the key, to recognise it by.
    hint            TEXT NOT NULL,
    -- The key at the beginning of a line of rotated keys. They share budget and rate limits.
    first_id        TEXT,
    -- The person who made the key in the studio. Strikes of the key count for this person, too.
    made_by         TEXT,
    -- Requests a minute; null means the server's limit, 0 no limit.
    submit_rate     INTEGER,
    read_rate       INTEGER,
    -- Credits to spend in a period.
    budget          INTEGER CHECK (budget > 0),
    budget_period   TEXT
        CHECK ((budget_period IS NULL) = (budget IS NULL) AND budget_period IN ('day', 'week', 'month')),
    -- Whether the operator set the budget. The owners of the account can then create no other key.
    operator_budget INTEGER NOT NULL DEFAULT 0,
    expires_at      INTEGER,
    disabled        INTEGER NOT NULL DEFAULT 0,
    revoked_at      INTEGER,
    -- The key was seen in a URL and should be rotated.
    leaked_at       INTEGER,
    -- Set by the content policy; see the strikes below.
    suspended_at    INTEGER,
    suspended_for   TEXT CHECK ((suspended_for IS NULL) = (suspended_at IS NULL)),
    -- To the minute or so, so that a request seldom writes it.
    last_used_at    INTEGER
) STRICT, WITHOUT ROWID;

-- Lists of an account's keys.
CREATE INDEX keys_of_account ON api_keys (account_id);
-- Budgets and limits of a line of keys.
CREATE INDEX keys_of_line ON api_keys (first_id);

-- ---- Tasks ----

-- A removed task keeps its row, because its ledger entries point at it. The columns that grow long come last, so that
-- reading the others never touches them.
CREATE TABLE tasks (
    id               TEXT PRIMARY KEY,
    account_id       TEXT NOT NULL REFERENCES accounts (id),
    surface          TEXT NOT NULL CHECK (surface IN ('api', 'web')),
    image_to_image   INTEGER NOT NULL,
    status           TEXT NOT NULL DEFAULT 'processing' CHECK (status IN ('processing', 'completed', 'failed')),
    updated_at       INTEGER NOT NULL,
    -- The last claim, for the time that a task waited and the time that it took. A failed task has it if a worker held it
    -- until then.
    claimed_at       INTEGER,
    -- Callers no longer see the task from then on.
    removed_at       INTEGER CHECK (removed_at IS NULL OR status <> 'processing'),
    -- The HTTP request that created the task, to find its render in the log.
    request_id       TEXT,
    -- JSON: the names of the result files.
    images           TEXT CHECK ((images IS NOT NULL) = (status = 'completed') AND images <> '[]'),
    -- Why it failed: `policy`, `reference:0`, `engine`, `lost`, `expired`, `cancelled` or `operator`.
    cause            TEXT,
    -- A sentence for the caller.
    error            TEXT CHECK ((error IS NOT NULL) = (status = 'failed')),
    n                INTEGER NOT NULL CHECK (n BETWEEN 1 AND 4),
    aspect_ratio     TEXT NOT NULL,
    -- JSON: the URLs as they were sent.
    reference_images TEXT NOT NULL,
    prompt           TEXT NOT NULL,
    -- JSON: the preset, and the settings for the engine. Null leaves all to the engine.
    settings         TEXT,
    -- The person who created it in the studio.
    person_id        TEXT
) STRICT, WITHOUT ROWID;

-- Lists of an account's tasks. With `removed_at` in it, always null, a page of ids is read from the index alone.
CREATE INDEX tasks_of_account ON tasks (account_id, surface, id, removed_at) WHERE removed_at IS NULL;

-- The gallery of a person's own tasks.
CREATE INDEX tasks_of_person ON tasks (account_id, person_id, id) WHERE removed_at IS NULL AND person_id IS NOT NULL;

-- Failed tasks whose prompts are kept, with the bytes of prompt and references. The oldest of an account are forgotten
-- when they exceed its share of the space.
CREATE TABLE failed_prompts (
    task_id    TEXT PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    bytes      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The sum of an account's bytes, newest task first, from the index alone.
CREATE INDEX failed_prompts_of_account ON failed_prompts (account_id, task_id, bytes);

-- ---- Queue ----

-- Exactly the tasks that are processing.
CREATE TABLE queue (
    task_id         TEXT PRIMARY KEY REFERENCES tasks (id),
    account_id      TEXT NOT NULL,
    -- A released task is not claimed again before this.
    ready_at        INTEGER NOT NULL DEFAULT 0,
    -- The fencing token: each claim raises it, and every later write of the worker must match it.
    lease_epoch     INTEGER NOT NULL DEFAULT 0,
    -- Null while the task waits.
    lease_until     INTEGER,
    claimed_at      INTEGER,
    lost_leases     INTEGER NOT NULL DEFAULT 0,
    -- Only needed until the task has ended, so they are in this narrow table: the key that submitted the task, or the
    -- person who created it in the studio.
    key_id          TEXT,
    person_id       TEXT,
    -- So that a worker claims only tasks that its engine can do. It never changes.
    reference_count INTEGER NOT NULL DEFAULT 0,
    -- The engine that the task needs; empty if any will do. It never changes. Few tasks name one.
    engine          TEXT NOT NULL DEFAULT '',
    -- Whether the caller of an API task would see previews.
    wants_previews  INTEGER NOT NULL DEFAULT 0,
    -- Credits that the task took from expiring grants, for its refund: pairs of grant and credits in JSON.
    taken           TEXT
) STRICT, WITHOUT ROWID;

-- Claims. Tasks of no engine and those of each engine are ranges of it, so tasks that wait for another engine delay
-- nobody. A claim passes over tasks that it cannot take by the index alone.
CREATE INDEX queue_waiting ON queue (engine, account_id, task_id, ready_at, reference_count) WHERE lease_until IS NULL;
-- An account's unfinished tasks, in order.
CREATE INDEX queue_of_account ON queue (account_id, task_id);
-- Tasks that wait for an engine that is gone.
CREATE INDEX queue_named ON queue (account_id, engine, reference_count) WHERE lease_until IS NULL AND engine > '';
-- The sweep for expired leases.
CREATE INDEX queue_leased ON queue (lease_until) WHERE lease_until IS NOT NULL;
-- Tasks with more references than any engine takes.
CREATE INDEX queue_with_references ON queue (reference_count) WHERE reference_count > 0;

-- One row while the queue is paused: no worker claims a task.
CREATE TABLE queue_pause (
    id        INTEGER PRIMARY KEY CHECK (id = 1),
    paused_at INTEGER NOT NULL
) STRICT;

-- Progress of attempts, reported about once a second. A row counts while the queue has the lease of its epoch; the
-- sweep for expired leases deletes the others.
CREATE TABLE progress (
    task_id     TEXT PRIMARY KEY,
    lease_epoch INTEGER NOT NULL,
    started_at  INTEGER NOT NULL,
    -- Either steps, or a part of the work from 0 to 1, or nothing yet.
    step        INTEGER,
    steps       INTEGER,
    fraction    REAL
) STRICT, WITHOUT ROWID;

-- The latest preview of an attempt, under the same rules as its progress.
CREATE TABLE previews (
    task_id     TEXT PRIMARY KEY,
    lease_epoch INTEGER NOT NULL,
    -- Rises with each preview of a task.
    number      INTEGER NOT NULL,
    png         BLOB NOT NULL
) STRICT;

-- ---- Ledger ----

-- Entries are never changed or deleted. A negative grant takes credits away.
CREATE TABLE ledger (
    id         INTEGER PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    kind       TEXT NOT NULL CHECK (kind IN ('grant', 'charge', 'refund', 'expiry')),
    amount     INTEGER NOT NULL
        CHECK ((kind = 'grant' OR (amount < 0) = (kind IN ('charge', 'expiry'))) AND amount <> 0),
    -- The account's balance after the entry. The database itself refuses overspending.
    balance    INTEGER NOT NULL CHECK (balance >= 0),
    created_at INTEGER NOT NULL,
    task_id    TEXT REFERENCES tasks (id) CHECK ((task_id IS NULL) = (kind IN ('grant', 'expiry'))),
    note       TEXT,
    key_id     TEXT CHECK (key_id IS NULL OR task_id IS NOT NULL),
    -- The entry of the grant that expired.
    grant_id   INTEGER CHECK ((grant_id IS NOT NULL) = (kind = 'expiry'))
) STRICT;

-- An account's balance, which is in its newest entry, and pages of its entries, newest first.
CREATE INDEX ledger_of_account ON ledger (account_id);
-- A task is charged once and refunded at most once, even if the program is wrong.
CREATE UNIQUE INDEX ledger_once ON ledger (task_id, kind) WHERE task_id IS NOT NULL;
-- A grant expires once, even if the program is wrong.
CREATE UNIQUE INDEX ledger_expiry_once ON ledger (grant_id) WHERE grant_id IS NOT NULL;
-- The credits that a key spent in a period, from the index alone.
CREATE INDEX ledger_of_key ON ledger (key_id, task_id, amount) WHERE key_id IS NOT NULL;
-- The latest failures of an account.
CREATE INDEX refunds_of_account ON ledger (account_id, created_at) WHERE kind = 'refund';

-- Credits that expire, by the entry that brought them: a grant, or a refund of credits whose grant had expired. They
-- are part of the balance.
CREATE TABLE expiring_grants (
    entry_id   INTEGER PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    amount     INTEGER NOT NULL CHECK (amount > 0),
    expires_at INTEGER NOT NULL,
    -- Credits that can still be spent.
    remaining  INTEGER NOT NULL CHECK (remaining BETWEEN 0 AND amount),
    -- Credits that were left when the grant expired; null until its expiry is in the ledger.
    lapsed     INTEGER CHECK (lapsed IS NULL OR (lapsed BETWEEN 0 AND amount AND remaining = 0))
) STRICT;

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
    task_id      TEXT PRIMARY KEY,
    -- The first key that its key was rotated from; in the studio the person who sent it.
    key_id       TEXT NOT NULL,
    -- SHA-256 of the fields of the call, and of its idempotency key.
    digest       BLOB NOT NULL,
    idempotency  BLOB,
    -- The latest attempt that took the task, counted from 0.
    attempt      INTEGER NOT NULL,
    -- The call that waits for the task; null once its caller has hung up.
    holder       INTEGER,
    delivered_at INTEGER
) STRICT, WITHOUT ROWID;

-- An idempotency key has one task.
CREATE UNIQUE INDEX calls_by_idempotency ON calls (key_id, idempotency) WHERE idempotency IS NOT NULL;
-- Without an idempotency key: the earlier attempt whose answer was not delivered.
CREATE INDEX undelivered_calls ON calls (key_id, digest) WHERE idempotency IS NULL AND delivered_at IS NULL;
-- The calls of a key or a person, when the account or the person is removed.
CREATE INDEX calls_of_key ON calls (key_id);

-- ---- Gallery ----

-- Numbers the studio's tasks for the index of their prompts, in the order of their creation.
CREATE TABLE prompts (
    number  INTEGER PRIMARY KEY,
    task_id TEXT NOT NULL UNIQUE
) STRICT;

-- Search terms of studio tasks. Each begins with a tag of its account, so a search reads no other account's entries.
-- The index holds no text. Most searches are for a tag of twelve characters and at least three letters.
CREATE VIRTUAL TABLE prompt_words USING fts5 (words, content = '', detail = none, tokenize = 'ascii', prefix = '15');
-- A deletion removes the words from the index instead of marking the task.
INSERT INTO prompt_words (prompt_words, rank) VALUES ('secure-delete', 1);

-- Tasks whose prompts are yet to be indexed, so that no submit waits for the index.
CREATE TABLE unindexed (
    task_id TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

CREATE TABLE stars (
    task_id   TEXT NOT NULL,
    person_id TEXT NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    PRIMARY KEY (task_id, person_id)
) STRICT, WITHOUT ROWID;

-- Pages of a person's starred tasks.
CREATE INDEX stars_of_person ON stars (person_id, task_id);

CREATE TABLE boards (
    id         TEXT PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    name       TEXT NOT NULL,
    -- The only person who sees it; null for a board of the whole account.
    person_id  TEXT REFERENCES people (id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- Also lists an account's boards.
CREATE UNIQUE INDEX boards_by_name ON boards (account_id, coalesce(person_id, ''), name);

-- The boards of a person who is removed.
CREATE INDEX boards_of_person ON boards (person_id) WHERE person_id IS NOT NULL;

CREATE TABLE board_tasks (
    board_id TEXT NOT NULL REFERENCES boards (id) ON DELETE CASCADE,
    task_id  TEXT NOT NULL,
    PRIMARY KEY (board_id, task_id)
) STRICT, WITHOUT ROWID;

-- The boards of a task, when it is shown or removed.
CREATE INDEX boards_of_task ON board_tasks (task_id);

-- Links that show a task or a board to everybody who has one. The secret part of a link follows from its id, so none is
-- stored; see crates/domain/src/signed_tokens.rs.
CREATE TABLE shared_links (
    id           TEXT PRIMARY KEY,
    account_id   TEXT NOT NULL REFERENCES accounts (id),
    -- Who made it. A link goes with its maker.
    person_id    TEXT NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    task_id      TEXT,
    board_id     TEXT REFERENCES boards (id) ON DELETE CASCADE,
    -- Whether its page shows the prompts.
    with_prompts INTEGER NOT NULL,
    -- Null for a link that works until it is revoked.
    expires_at   INTEGER,
    views        INTEGER NOT NULL DEFAULT 0,
    CHECK ((task_id IS NULL) <> (board_id IS NULL))
) STRICT, WITHOUT ROWID;

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
    task_id    TEXT PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    deleted_at INTEGER NOT NULL,
    erased     INTEGER NOT NULL DEFAULT 0,
    -- The task can no longer be restored: the next sweep erases it.
    is_final   INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

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
    id         TEXT PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    surface    TEXT NOT NULL CHECK (surface IN ('api', 'web')),
    -- The name of the file; null until it is stored.
    name       TEXT,
    width      INTEGER,
    height     INTEGER,
    updated_at INTEGER NOT NULL,
    removed_at INTEGER,
    -- The person who uploaded it in the studio; null for one of an earlier release.
    person_id  TEXT,
    -- Whether it was painted: it says which part of a picture changes.
    is_mask    INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- Lists of an account's uploads.
CREATE INDEX uploads_of_account ON uploads (account_id, surface, id) WHERE removed_at IS NULL;
-- The sweep that removes files.
CREATE INDEX removed_uploads ON uploads (removed_at) WHERE removed_at IS NOT NULL;

-- ---- Strikes ----

-- Tasks that the content policy refused, held against their key until the key is enabled again or they are too old to
-- count.
CREATE TABLE strikes (
    task_id    TEXT PRIMARY KEY REFERENCES tasks (id),
    key_id     TEXT NOT NULL REFERENCES api_keys (id),
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The recent strikes of a key.
CREATE INDEX strikes_of_key ON strikes (key_id, created_at);

-- The same for the people who created tasks in the studio.
CREATE TABLE person_strikes (
    task_id    TEXT PRIMARY KEY,
    person_id  TEXT NOT NULL REFERENCES people (id) ON DELETE CASCADE,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The recent strikes of a person.
CREATE INDEX strikes_of_person ON person_strikes (person_id, created_at);

-- ---- Webhooks ----

-- Receivers of an account's events.
CREATE TABLE endpoints (
    id               TEXT PRIMARY KEY,
    account_id       TEXT NOT NULL REFERENCES accounts (id),
    url              TEXT NOT NULL,
    -- The names of the events it subscribes to, separated by spaces.
    events           TEXT NOT NULL,
    added_by         TEXT NOT NULL CHECK (added_by IN ('operator', 'owner')),
    -- Kept as it is, because it signs. After a rotation the old one signs too, for a while.
    secret           TEXT NOT NULL,
    old_secret       TEXT,
    old_secret_until INTEGER,
    -- An endpoint that fails for days is disabled.
    failing_since    INTEGER,
    -- The receiver has asked for a pause.
    resume_at        INTEGER,
    disabled_at      INTEGER,
    disabled_for     TEXT CHECK (disabled_for IN ('request', 'gone', 'failing')),
    CHECK ((old_secret IS NULL) = (old_secret_until IS NULL)),
    CHECK ((disabled_at IS NULL) = (disabled_for IS NULL))
) STRICT, WITHOUT ROWID;

-- The endpoints that get an event of an account.
CREATE INDEX endpoints_of_account ON endpoints (account_id);

-- Events on their way to one endpoint each, written in the commit of the change they report.
CREATE TABLE deliveries (
    id              TEXT PRIMARY KEY,
    endpoint_id     TEXT NOT NULL REFERENCES endpoints (id) ON DELETE CASCADE,
    -- The end of a task has the id of the task, so that a receiver recognises repeats.
    event_id        TEXT NOT NULL,
    type            TEXT NOT NULL,
    -- JSON; null for the end of a task, whose data are read from the task.
    data            TEXT,
    happened_at     INTEGER NOT NULL,
    attempts        INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    -- The claim of an attempt moves this past the attempt's end, so a process that dies leaves the delivery to another.
    next_attempt_at INTEGER,
    delivered_at    INTEGER,
    -- The receiver's last HTTP status, or the reason why there was none.
    status          INTEGER,
    trouble         TEXT,
    CHECK (delivered_at IS NULL OR next_attempt_at IS NULL)
) STRICT, WITHOUT ROWID;

-- Lists of an endpoint's deliveries.
CREATE INDEX deliveries_of_endpoint ON deliveries (endpoint_id, id);
-- Claims of due deliveries.
CREATE INDEX deliveries_waiting ON deliveries (endpoint_id, next_attempt_at) WHERE next_attempt_at IS NOT NULL;

-- ---- Workers ----

-- One process works on tasks, and knows its engines by itself.

-- ---- Audit log ----

-- Changes to accounts, credits, keys, people, the queue or a task. A row has the names of people and keys at that time,
-- because they may be gone when it is read.
CREATE TABLE audit_log (
    id         TEXT PRIMARY KEY,
    actor      TEXT NOT NULL,
    person_id  TEXT,
    via        TEXT NOT NULL CHECK (via IN ('command', 'studio', 'server')),
    -- The network address, or the name of the machine.
    source     TEXT,
    action     TEXT NOT NULL,
    account_id TEXT,
    subject    TEXT,
    detail     TEXT
) STRICT, WITHOUT ROWID;

-- Pages of an account's entries.
CREATE INDEX audit_log_of_account ON audit_log (account_id, id);
