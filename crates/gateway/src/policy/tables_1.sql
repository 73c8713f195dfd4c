-- Answers that are given again.
CREATE TABLE policy_answers (
    -- SHA-256 in hex.
    id TEXT PRIMARY KEY,
    -- Times are seconds since 1970.
    expires INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    -- JSON: the headers, and what the answer cost.
    head TEXT NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX policy_answers_expires ON policy_answers (expires);

-- One row: bytes of all answers.
CREATE TABLE policy_room (id INTEGER PRIMARY KEY, bytes INTEGER NOT NULL);
INSERT INTO policy_room (id, bytes) VALUES (1, 0);

-- What processes have taken of a limit in each part of its window.
CREATE TABLE policy_rates (
    name TEXT NOT NULL,
    start INTEGER NOT NULL,
    used INTEGER NOT NULL,
    -- From when on nobody asks for it any more.
    ends INTEGER NOT NULL,
    PRIMARY KEY (name, start)
);
CREATE INDEX policy_rates_ends ON policy_rates (ends);

-- Limits of keys beside those that stand with them.
CREATE TABLE policy_keys (key_id TEXT PRIMARY KEY, tokens_per_minute INTEGER);

-- Money that accounts paid in advance; in billionths of a dollar.
CREATE TABLE policy_credits (
    id TEXT PRIMARY KEY,
    account TEXT NOT NULL,
    amount INTEGER NOT NULL,
    created INTEGER NOT NULL,
    -- Who or what paid it, for people.
    note TEXT NOT NULL
);
CREATE INDEX policy_credits_account ON policy_credits (account, created);

-- What accounts may spend.
CREATE TABLE policy_spending_limits (
    account TEXT PRIMARY KEY,
    amount INTEGER NOT NULL,
    -- daily, weekly or monthly.
    duration TEXT NOT NULL,
    -- fixed or sliding.
    technique TEXT NOT NULL
);
