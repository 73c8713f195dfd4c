CREATE TABLE gateway_custom_providers (
    id TEXT PRIMARY KEY,
    account TEXT NOT NULL,
    -- Without `custom-`.
    slug TEXT NOT NULL,
    base_url TEXT NOT NULL,
    -- 1 where it may be asked.
    enabled INTEGER NOT NULL,
    -- 1 where plain HTTP and addresses inside private networks are allowed.
    private INTEGER NOT NULL,
    -- JSON: what is only shown, and the dialect.
    about TEXT NOT NULL,
    -- Seconds since 1970.
    created INTEGER NOT NULL,
    modified INTEGER NOT NULL,
    UNIQUE (account, slug)
);
