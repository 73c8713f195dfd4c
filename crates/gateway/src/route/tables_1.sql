CREATE TABLE gateway_routes (
    id TEXT PRIMARY KEY,
    account TEXT NOT NULL,
    gateway TEXT NOT NULL,
    name TEXT NOT NULL,
    -- Times are seconds since 1970.
    created INTEGER NOT NULL,
    modified INTEGER NOT NULL,
    UNIQUE (account, gateway, name)
);

-- Ids are UUIDs of version 7, so that their order is that of time.
CREATE TABLE gateway_route_versions (
    id TEXT PRIMARY KEY,
    route TEXT NOT NULL REFERENCES gateway_routes (id),
    -- JSON, as the client wrote it.
    elements TEXT NOT NULL,
    created INTEGER NOT NULL
);
CREATE INDEX gateway_route_versions_route ON gateway_route_versions (route);

-- The last one of a route holds.
CREATE TABLE gateway_route_deployments (
    id TEXT PRIMARY KEY,
    route TEXT NOT NULL REFERENCES gateway_routes (id),
    version TEXT NOT NULL REFERENCES gateway_route_versions (id),
    created INTEGER NOT NULL
);
CREATE INDEX gateway_route_deployments_route ON gateway_route_deployments (route);

-- Requests that passed a rate element in the window that began at `start`, by the value of its key.
CREATE TABLE gateway_route_counts (
    route TEXT NOT NULL,
    element TEXT NOT NULL,
    value TEXT NOT NULL,
    start INTEGER NOT NULL,
    used INTEGER NOT NULL,
    PRIMARY KEY (route, element, value, start)
);
