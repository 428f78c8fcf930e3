-- Rows that were in flight at each forward, summed: with them the batch tax is what riding along really cost.
ALTER TABLE forward_shapes ADD COLUMN in_flight BIGINT;
