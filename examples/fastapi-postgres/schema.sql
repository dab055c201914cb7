-- The service's own role and table, and an empty schema for Onlyonce. "onlyonce migrate" fills it.
CREATE ROLE shop LOGIN PASSWORD 'shop';
CREATE SCHEMA shop AUTHORIZATION shop;
CREATE TABLE shop.payment (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    amount   integer NOT NULL,
    currency text NOT NULL
);
ALTER TABLE shop.payment OWNER TO shop;
CREATE SCHEMA onlyonce;
-- So that the service can write onlyonce_complete without the schema's name.
ALTER ROLE shop SET search_path = shop, onlyonce;
