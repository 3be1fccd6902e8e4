-- The keys of a disabled account are not valid. A deleted account is disabled for good; its ledger stays.
ALTER TABLE accounts ADD COLUMN disabled_at INTEGER;
ALTER TABLE accounts ADD COLUMN deleted_at INTEGER;
