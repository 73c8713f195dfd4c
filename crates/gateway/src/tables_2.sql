-- When nobody asks any more for what was spent in a part of a window; what has no window stays.
ALTER TABLE gateway_spend ADD COLUMN ends INTEGER;
CREATE INDEX gateway_spend_ends ON gateway_spend (ends);
