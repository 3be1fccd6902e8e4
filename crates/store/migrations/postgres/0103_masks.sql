-- Workers report whether their engine takes masks. Those of an earlier release say nothing, and take none.
ALTER TABLE workers ADD COLUMN masks boolean NOT NULL DEFAULT false;
