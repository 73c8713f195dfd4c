-- Whether the limits of requests and tokens of a key only report.
ALTER TABLE policy_keys ADD COLUMN shadow INTEGER NOT NULL DEFAULT 0;
