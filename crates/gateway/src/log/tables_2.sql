-- FLAG or BLOCK where data was found that may not pass.
ALTER TABLE gateway_logs ADD COLUMN dlp_action TEXT;
