-- Entries are open for a moment only: an index of all of them would be written twice for each, for nothing.
DROP INDEX gateway_ledger_open;
CREATE INDEX gateway_ledger_open ON gateway_ledger (process) WHERE state = 'open';
