-- Emoji and other symbols have become terms of the search. Every prompt is indexed again: terms can only be removed as
-- they were made.
INSERT OR IGNORE INTO unindexed (task_id) SELECT task_id FROM prompts;
INSERT INTO prompt_words (prompt_words) VALUES ('delete-all');
DELETE FROM prompts;
