-- What guardrails found, and limits that only report would have refused, as JSON; nothing where that is nothing.
ALTER TABLE gateway_logs ADD COLUMN findings TEXT;
