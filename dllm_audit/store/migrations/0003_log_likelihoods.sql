-- Tasks that ask how likely given answers are: what a run was asked for, and what was found of each answer.
ALTER TABLE runs ADD COLUMN output_type VARCHAR DEFAULT 'generate_until';  -- lm-eval's word for what the task asks
ALTER TABLE requests ADD COLUMN score_forwards INTEGER;
ALTER TABLE requests ADD COLUMN score_seconds DOUBLE;
ALTER TABLE requests ADD COLUMN continuation VARCHAR;                     -- the answer that was scored
ALTER TABLE requests ADD COLUMN choice INTEGER;                           -- its place among the answers of its document
ALTER TABLE requests ADD COLUMN scored_tokens INTEGER;
ALTER TABLE requests ADD COLUMN loglikelihood DOUBLE;                     -- in nats
ALTER TABLE requests ADD COLUMN standard_error DOUBLE;                    -- of its estimate; 0 where it is exact
ALTER TABLE requests ADD COLUMN samples BIGINT;
ALTER TABLE requests ADD COLUMN is_exact BOOLEAN;
ALTER TABLE requests ADD COLUMN is_greedy BOOLEAN;                        -- whether greedy decoding gives this answer
