-- Who looks through the result files when: each sweep, of one day (by its name) or of what removed tasks leave, with
-- when it is due again. Whoever takes one puts it off by some minutes at a time, then until it is wanted again. One
-- without a row is due.
CREATE TABLE sweeps (
    name   TEXT PRIMARY KEY,
    due_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
