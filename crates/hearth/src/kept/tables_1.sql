CREATE TABLE responses_conversations (
    id INTEGER PRIMARY KEY,
    -- Seconds since 1970 of the last turn.
    used INTEGER NOT NULL
) STRICT;
CREATE INDEX responses_conversations_used ON responses_conversations (used);

CREATE TABLE responses_turns (
    id TEXT PRIMARY KEY,
    conversation INTEGER NOT NULL REFERENCES responses_conversations ON DELETE CASCADE,
    -- The turn before; it may have been deleted.
    previous TEXT,
    -- Of its cache salt, SHA-256 in hex; empty without one.
    salt TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    -- JSON: lists of items, and the object without its output.
    input TEXT NOT NULL,
    output TEXT NOT NULL,
    response TEXT NOT NULL
) STRICT;
CREATE INDEX responses_turns_conversation ON responses_turns (conversation);

-- One row: the sum over all turns.
CREATE TABLE responses_size (bytes INTEGER NOT NULL) STRICT;
INSERT INTO responses_size VALUES (0);
--@ sqlite
CREATE TRIGGER responses_turns_inserted AFTER INSERT ON responses_turns
BEGIN UPDATE responses_size SET bytes = bytes + new.bytes; END;
CREATE TRIGGER responses_turns_deleted AFTER DELETE ON responses_turns
BEGIN UPDATE responses_size SET bytes = bytes - old.bytes; END;
--@ postgres
CREATE FUNCTION responses_turns_count() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        UPDATE responses_size SET bytes = bytes + new.bytes;
    ELSE
        UPDATE responses_size SET bytes = bytes - old.bytes;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER responses_turns_counted AFTER INSERT OR DELETE ON responses_turns
FOR EACH ROW EXECUTE FUNCTION responses_turns_count();
