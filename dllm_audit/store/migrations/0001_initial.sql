-- Runs, their requests and what was made of them. No foreign keys: they would block later ALTERs in DuckDB.
CREATE TABLE runs (
    run_id            VARCHAR PRIMARY KEY,
    invocation        VARCHAR NOT NULL,      -- the command that started it: runs that belong together share it
    content_key       VARCHAR NOT NULL,      -- address by content, for --resume
    backend           VARCHAR NOT NULL,
    provenance        VARCHAR NOT NULL,
    kind              VARCHAR NOT NULL CHECK (kind IN ('diffusion', 'autoregressive', 'served')),
    fidelity          VARCHAR NOT NULL,      -- 'paper', or the program that compat reproduces
    model             VARCHAR NOT NULL,
    task              VARCHAR NOT NULL,
    role              VARCHAR NOT NULL CHECK (role IN ('candidate', 'baseline', 'control')),
    concurrency       INTEGER NOT NULL,
    repeat            INTEGER NOT NULL,
    settings          VARCHAR NOT NULL,      -- JSON
    setting_sources   VARCHAR NOT NULL,      -- JSON: option, task or default, by name
    manifest          VARCHAR NOT NULL,      -- JSON: environment, model, prompts, warm-up
    status            VARCHAR NOT NULL CHECK (status IN ('running', 'complete', 'interrupted', 'failed')),
    sittings          INTEGER NOT NULL,      -- 1, or more when the run was resumed
    planned_requests  INTEGER NOT NULL,
    started_at        TIMESTAMP NOT NULL,
    ended_at          TIMESTAMP,
    makespan_seconds  DOUBLE,                -- sum over sittings
    store_seconds     DOUBLE                 -- time spent storing, outside every clock
);

CREATE TABLE requests (
    run_id               VARCHAR NOT NULL,
    ordinal              INTEGER NOT NULL,   -- place in the task's order
    request_key          VARCHAR NOT NULL,   -- address by content
    sitting              INTEGER NOT NULL,
    doc_id               INTEGER,
    prompt               VARCHAR,
    prompt_sha256        VARCHAR,
    text                 VARCHAR,
    output_ids           INTEGER[],
    stop                 VARCHAR,            -- 'length', 'eos' or 'until'
    prompt_tokens        INTEGER,
    answered_tokens      INTEGER,
    answered_characters  INTEGER,
    committed_tokens     INTEGER,
    residual_masks       INTEGER,
    prefill_forwards     INTEGER,
    denoise_forwards     INTEGER,
    refresh_forwards     INTEGER,
    commit_forwards      INTEGER,
    cfg_forwards         INTEGER,
    committing_forwards  INTEGER,
    guaranteed_commits   INTEGER,
    query_positions      BIGINT,
    total_seconds        DOUBLE,
    waiting_seconds      DOUBLE,
    tokenise_seconds     DOUBLE,
    prefill_seconds      DOUBLE,
    denoise_seconds      DOUBLE,
    refresh_seconds      DOUBLE,
    commit_seconds       DOUBLE,
    sampling_seconds     DOUBLE,
    host_seconds         DOUBLE,
    detokenise_seconds   DOUBLE,
    ttft_seconds         DOUBLE,             -- first answer position final inside the decoder
    error_type           VARCHAR,
    error_message        VARCHAR,
    elapsed_seconds      DOUBLE,             -- of the sitting's timed region, when this request was finished
    finished_at          TIMESTAMP NOT NULL,
    PRIMARY KEY (run_id, ordinal)
);

CREATE TABLE forward_shapes (
    run_id   VARCHAR NOT NULL,
    sitting  INTEGER NOT NULL,
    kind     VARCHAR NOT NULL,
    width    INTEGER NOT NULL,               -- query positions of the widest row
    rows     INTEGER NOT NULL,
    count    BIGINT NOT NULL,
    seconds  DOUBLE NOT NULL,
    decided  BIGINT NOT NULL,                -- positions whose logits were computed
    keys     BIGINT NOT NULL                 -- columns that the widest row could see, summed
);

CREATE TABLE trace_forwards (
    run_id   VARCHAR NOT NULL,
    ordinal  INTEGER NOT NULL,
    step     INTEGER NOT NULL,
    kind     VARCHAR NOT NULL,
    width    INTEGER NOT NULL,
    block    INTEGER NOT NULL
);

CREATE TABLE trace_commits (
    run_id      VARCHAR NOT NULL,
    ordinal     INTEGER NOT NULL,
    step        INTEGER NOT NULL,
    position    INTEGER NOT NULL,            -- counts from the first prompt token
    token       INTEGER NOT NULL,
    confidence  DOUBLE NOT NULL
);

CREATE TABLE answers (
    run_id    VARCHAR NOT NULL,
    task      VARCHAR NOT NULL,
    doc_id    INTEGER NOT NULL,
    filter    VARCHAR NOT NULL,
    metric    VARCHAR NOT NULL,
    value     DOUBLE,
    response  VARCHAR,                       -- what the filter took out of the answer
    target    VARCHAR
);

CREATE TABLE metrics (
    run_id     VARCHAR NOT NULL,
    task       VARCHAR NOT NULL,
    metric     VARCHAR NOT NULL,
    filter     VARCHAR NOT NULL,
    value      DOUBLE,
    stderr     DOUBLE,
    documents  INTEGER NOT NULL
);
