-- Emoji and other symbols have become terms of the search. Every prompt is indexed again.
INSERT INTO unindexed (task_id) SELECT task_id FROM prompts ON CONFLICT DO NOTHING;
TRUNCATE prompts;
