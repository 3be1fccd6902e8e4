-- What the processes that draw can do, told by each of them every few seconds: how many tasks at once, and how long an
-- attempt takes, null until one ended. Of who is silent nothing is to be expected. Few rows that change all the time.
CREATE TABLE workers (
    id      text COLLATE "C" PRIMARY KEY,
    slots   int NOT NULL CHECK (slots > 0),
    mean_ms bigint CHECK (mean_ms > 0),
    seen_at bigint NOT NULL
) WITH (fillfactor = 50);
