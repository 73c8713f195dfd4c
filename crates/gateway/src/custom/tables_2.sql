-- A JSON object of headers that are sent to it, sealed for `custom_providers/ID`.
ALTER TABLE gateway_custom_providers ADD COLUMN headers TEXT;
