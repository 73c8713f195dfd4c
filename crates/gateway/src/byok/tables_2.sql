-- So many requests in so many seconds; none where there is no limit.
ALTER TABLE gateway_provider_keys ADD COLUMN rate_limit INTEGER;
ALTER TABLE gateway_provider_keys ADD COLUMN rate_limit_period INTEGER;
