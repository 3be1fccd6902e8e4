-- The rules of credits are in the program alone. Processes of the release before call these functions, so their submits and
-- endings fail from here on: stop them first.
DROP FUNCTION tintype_credits(text);
DROP FUNCTION tintype_unfinished(text, text, bigint);
DROP FUNCTION tintype_spent(text, text, text, text);
DROP FUNCTION tintype_expiring(text, bigint);
DROP FUNCTION tintype_spend(text, bigint, bigint);
DROP FUNCTION tintype_draw(text, bigint, bigint);
DROP FUNCTION tintype_give_back(text, bigint, text, text, bigint, bigint);
DROP FUNCTION tintype_tell_if_low(text, bigint, bigint, bigint, bigint);
DROP FUNCTION tintype_tell(text, text, text, text, bigint);
DROP FUNCTION tintype_id(bigint);
DROP FUNCTION tintype_call(text, text, bytea, bytea, bigint, text);
