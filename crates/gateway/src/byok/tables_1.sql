CREATE TABLE gateway_provider_keys (
    id TEXT PRIMARY KEY,
    account TEXT NOT NULL,
    gateway TEXT NOT NULL,
    -- The provider's slug.
    provider TEXT NOT NULL,
    alias TEXT NOT NULL,
    -- 1 where it is used by requests that name no alias.
    is_default INTEGER NOT NULL,
    -- Its share among the keys of one alias.
    weight INTEGER NOT NULL,
    -- Sealed for `provider_keys/ID`.
    secret TEXT NOT NULL,
    -- The last characters, for people.
    preview TEXT NOT NULL,
    -- Seconds since 1970.
    created INTEGER NOT NULL,
    modified INTEGER NOT NULL
);
CREATE INDEX gateway_provider_keys_place ON gateway_provider_keys (account, gateway, provider);
