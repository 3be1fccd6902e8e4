-- While somebody keeps an old snapshot, every dead version of an account's row stays. Whoever looks the row up by its
-- id passes over all of them, and so does every new version that has to be unique by id or name. So what must be unique
-- is in a table that hardly changes; and now and then a version of the row gets a higher turn, so that the newest is
-- found from the end of the index.
-- Nobody makes an account or a key between two of these steps.
LOCK TABLE accounts, api_keys IN ACCESS EXCLUSIVE MODE;

CREATE TABLE account_names (
    name       text COLLATE "C" PRIMARY KEY,
    account_id text COLLATE "C" NOT NULL UNIQUE
);
INSERT INTO account_names SELECT name, id FROM accounts;

-- An account whose name or id is taken is not made.
CREATE FUNCTION tintype_name_account() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO account_names VALUES (NEW.name, NEW.id) ON CONFLICT DO NOTHING;
    RETURN CASE WHEN FOUND THEN NEW END;
END $$;
CREATE TRIGGER accounts_named BEFORE INSERT ON accounts FOR EACH ROW EXECUTE FUNCTION tintype_name_account();

ALTER TABLE api_keys DROP CONSTRAINT api_keys_account_id_fkey;
ALTER TABLE api_keys ADD FOREIGN KEY (account_id) REFERENCES account_names (account_id);
ALTER TABLE accounts DROP CONSTRAINT accounts_pkey, DROP CONSTRAINT accounts_name_key,
    ADD COLUMN turn bigint NOT NULL DEFAULT 0;
CREATE INDEX accounts_newest ON accounts (id, turn);
