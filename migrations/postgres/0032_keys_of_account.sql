-- The keys of one account are found without those of the others.
CREATE INDEX keys_of_account ON api_keys (account_id);
