-- A row while the queue is paused: no worker claims a task.
CREATE TABLE queue_pause (
    id        INTEGER PRIMARY KEY CHECK (id = 1),
    paused_at INTEGER NOT NULL
) STRICT;
