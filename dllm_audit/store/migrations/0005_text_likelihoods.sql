-- How likely another model finds the answers of a run, for their perplexity: asked afterwards, outside every clock.
CREATE TABLE text_likelihoods (
    run_id            VARCHAR NOT NULL,
    ordinal           INTEGER NOT NULL,
    reference         VARCHAR NOT NULL,      -- the model, as it was named
    reference_sha256  VARCHAR NOT NULL,      -- of its weights
    dtype             VARCHAR NOT NULL,
    scored_tokens     INTEGER NOT NULL,      -- in the reference's own tokens
    loglikelihood     DOUBLE NOT NULL,       -- of the answer after its prompt, in nats
    scored_at         TIMESTAMP NOT NULL,
    PRIMARY KEY (run_id, ordinal, reference)
);
