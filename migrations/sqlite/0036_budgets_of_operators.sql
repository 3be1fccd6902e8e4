-- While a key has a budget of the operator, the owners of its account make no others. Nobody knows who set earlier budgets, so
-- they count as the operator's.
ALTER TABLE api_keys ADD COLUMN operator_budget INTEGER NOT NULL DEFAULT 0;
UPDATE api_keys SET operator_budget = 1 WHERE budget IS NOT NULL;

-- Owners could make keys without limits, which only the operator may. The audit log tells them apart.
UPDATE api_keys SET submit_rate = nullif(submit_rate, 0), read_rate = nullif(read_rate, 0)
WHERE (submit_rate = 0 OR read_rate = 0) AND account_id NOT IN (SELECT id FROM accounts WHERE admin)
    AND first_id IN (SELECT subject FROM audit_log WHERE action = 'audit-create-key' AND via = 'studio');
