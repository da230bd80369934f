-- The fingerprint of the certificate of the authority that signs users, hosts
-- and controllers; null until a controller has noted it. Its key is in the
-- controllers' folders only.
ALTER TABLE cluster ADD COLUMN authority TEXT;
