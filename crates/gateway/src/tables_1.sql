-- One row, counted up by every change of accounts, keys and gateways, so that each process sees that there was one.
CREATE TABLE gateway_version (id INTEGER PRIMARY KEY, version INTEGER NOT NULL);
INSERT INTO gateway_version (id, version) VALUES (1, 1);

CREATE TABLE gateway_accounts (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    -- Times are seconds since 1970.
    created INTEGER NOT NULL
);

CREATE TABLE gateway_keys (
    id TEXT PRIMARY KEY,
    account TEXT NOT NULL REFERENCES gateway_accounts (id),
    name TEXT NOT NULL,
    -- SHA-256 of the key in hex.
    hash TEXT NOT NULL UNIQUE,
    -- The key that a rotation replaced, as long as it is still taken.
    old_hash TEXT,
    old_until INTEGER,
    -- The first characters, for people.
    shown TEXT NOT NULL,
    -- Words with a space between.
    scopes TEXT NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER,
    revoked INTEGER,
    requests_per_minute INTEGER,
    -- Money is in billionths of a dollar.
    budget INTEGER,
    -- Seconds; none is for ever.
    budget_period INTEGER
);
CREATE INDEX gateway_keys_account ON gateway_keys (account);

CREATE TABLE gateway_gateways (
    account TEXT NOT NULL REFERENCES gateway_accounts (id),
    id TEXT NOT NULL,
    -- JSON.
    settings TEXT NOT NULL,
    created INTEGER NOT NULL,
    modified INTEGER NOT NULL,
    PRIMARY KEY (account, id)
);

-- Processes that may have open entries.
CREATE TABLE gateway_processes (id TEXT PRIMARY KEY, seen INTEGER NOT NULL);

CREATE TABLE gateway_ledger (
    request TEXT PRIMARY KEY,
    process TEXT NOT NULL,
    account TEXT NOT NULL,
    gateway TEXT NOT NULL,
    key_id TEXT,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    -- open, settled, failed or interrupted.
    state TEXT NOT NULL,
    created INTEGER NOT NULL,
    ended INTEGER,
    -- The worst case, as long as nothing better is known.
    reserved INTEGER,
    -- 1 where the caller named the cost.
    custom INTEGER NOT NULL,
    input INTEGER,
    cached_input INTEGER,
    cache_write INTEGER,
    output INTEGER,
    reasoning INTEGER,
    -- None: not known.
    cost INTEGER,
    saved INTEGER,
    -- The HTTP status of a failure.
    status INTEGER
);
CREATE INDEX gateway_ledger_account ON gateway_ledger (account, created);
CREATE INDEX gateway_ledger_open ON gateway_ledger (process, state);

CREATE TABLE gateway_ledger_metadata (
    request TEXT NOT NULL,
    name TEXT NOT NULL,
    -- JSON: a string, a number or a truth value.
    value TEXT NOT NULL,
    PRIMARY KEY (request, name)
);

-- What a key with a budget has spent or reserved since the start of a period.
CREATE TABLE gateway_spend (
    key_id TEXT NOT NULL,
    start INTEGER NOT NULL,
    spent INTEGER NOT NULL,
    PRIMARY KEY (key_id, start)
);
