-- Where history begins: tasks with an id below this may be gone with their month, and no such id is made any more.
-- One row; every id is above the first that is written there.
CREATE TABLE history (
    first_id text COLLATE "C" NOT NULL
);
INSERT INTO history VALUES ('---------------------');
