-- The order of a conversation's turns, which SQLite had in its hidden row numbers.
ALTER TABLE responses_turns ADD COLUMN number INTEGER NOT NULL DEFAULT 0;
--@ sqlite
UPDATE responses_turns SET number = rowid;
--@ both
DROP INDEX responses_turns_conversation;
CREATE INDEX responses_turns_conversation ON responses_turns (conversation, number);
