-- One row for each answer that was asked for and is logged; the id is that of the ledger's entry, where there is one.
CREATE TABLE gateway_logs (
    id TEXT PRIMARY KEY,
    account TEXT NOT NULL,
    gateway TEXT NOT NULL,
    -- Milliseconds since 1970.
    created INTEGER NOT NULL,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    model_type TEXT NOT NULL,
    path TEXT NOT NULL,
    request_type TEXT NOT NULL,
    -- Milliseconds to the end of the answer, and to its first byte.
    duration INTEGER NOT NULL,
    first_byte INTEGER,
    status INTEGER NOT NULL,
    success INTEGER NOT NULL,
    cached INTEGER NOT NULL,
    step INTEGER NOT NULL,
    tokens_in INTEGER,
    tokens_cached INTEGER,
    tokens_out INTEGER,
    -- Billionths of a dollar; none where it is not known.
    cost INTEGER,
    custom_cost INTEGER NOT NULL,
    request_content_type TEXT,
    response_content_type TEXT,
    request_size INTEGER NOT NULL,
    response_size INTEGER NOT NULL,
    -- The first characters of what is kept of the payload, and whether they are all of it.
    request_head TEXT,
    request_head_complete INTEGER NOT NULL,
    response_head TEXT,
    response_head_complete INTEGER NOT NULL,
    user_agent TEXT,
    key_id TEXT,
    event_id TEXT,
    -- Whether a key was shown, and whether the path was that of compat.
    authentication INTEGER NOT NULL,
    compatibility INTEGER NOT NULL,
    -- Why there was no answer.
    error TEXT,
    feedback INTEGER,
    -- A number, as JSON.
    score TEXT
);
CREATE INDEX gateway_logs_created ON gateway_logs (account, gateway, created);

CREATE TABLE gateway_log_metadata (
    log TEXT NOT NULL,
    name TEXT NOT NULL,
    -- JSON: a string, a number or a truth value.
    value TEXT NOT NULL,
    PRIMARY KEY (log, name)
);

CREATE TABLE gateway_log_payloads (
    log TEXT NOT NULL,
    -- request or response.
    side TEXT NOT NULL,
    -- text, or base64 where it is none.
    form TEXT NOT NULL,
    body TEXT NOT NULL,
    -- 1 where it was cut at the limit.
    cut INTEGER NOT NULL,
    PRIMARY KEY (log, side)
);
