"""Three claims written to be honest, and ways to spoil them one field at a time."""

from typing import Any

from dllm_audit.claims.document import parse_document
from dllm_audit.claims.schema import Claim

SWEEP = """\
schema: 1
id: honest-sweep
statement: On one engine the block model is 1.8 times as fast as the autoregressive one, up to 64 requests.
system: Example
model: Block 7B
vendor: Example Lab
reported_by: third-party
date: 2026-03-14
source: {title: A benchmark, identifier: study 2, locator: Table 2, primary_read: yes, value_from: primary}
kind: speedup
metric: ratio of output tokens per second
value: 1.8
unit: x
aggregate: mean
rate_of: all requests
status: measured
baseline:
  model: AR 7B
  value: 1200
  unit: tok/s
  same_gpu: yes
  same_engine: yes
  engine: SGLang 0.5
  devices: 1
  kv_cache: yes
  synthetic: no
  share_of_bound: 0.8
hardware: {device: NVIDIA H100, count: 1}
precision: bf16
concurrency: {qualifier: several, parts: {one: 1, eight: 8, sixty-four: 64}, wording: "1, 8 and 64"}
prompt_tokens: 512
output_tokens: 256
decode:
  method: block diffusion
  cache: exact
  block_length: 32
  steps: not applicable
  schedule: threshold
  threshold: 0.9
  tokens_per_step: 3.1
quality:
  benchmark: MATH
  documents: 5000
  shots: 4
  metric: accuracy
  at_speed: 61.0
  reference: 61.4
  reference_is: AR 7B
  same_runs: yes
  claimed_margin_points: 1.5
counts: {prompt: no, padding: no}
time_includes: {prefill: yes, commit_pass: yes, fixed_overhead: yes}
figures:
  - {what: its rate, value: 2160, unit: tok/s, baseline_value: 1200, relation: same, where: Table 2}
"""

REPLICATED = """\
schema: 1
id: honest-replicated
statement: Eight GPUs serve 4,000 tokens per second each.
system: Example
model: Block 70B
vendor: Example Lab
reported_by: authors
date: 2026-03
source: {title: A report, identifier: report 1, locator: section 3, primary_read: yes, value_from: primary}
kind: throughput
metric: output tokens per second and device
value: 4000
unit: tok/s
aggregate: single setting
rate_of: one device
status: measured
baseline: none
hardware: {device: NVIDIA H100, count: 8}
precision: FP8
concurrency: 256
prompt_tokens: 1000
output_tokens: 1000
decode:
  method: block diffusion
  cache: exact
  block_length: 32
  steps: 8
  schedule: fixed
  threshold: not applicable
  tokens_per_step: 4
quality:
  benchmark: the lab's 12,000 questions
  documents: 12000
  shots: 0
  metric: accuracy
  at_speed: 70.2
  reference: 71.9
  reference_is: the same model at one token per step
  same_runs: yes
counts: {prompt: no, padding: no}
time_includes: {prefill: yes, commit_pass: yes, fixed_overhead: yes}
replications:
  - {who: a cloud provider, value: 3950, unit: tok/s, where: its own post}
"""

SCORE = """\
schema: 1
id: honest-score
statement: Two tokens a step cost 3.0 points on GSM8K.
system: Example
model: Masked 8B
vendor: Example Lab
reported_by: third-party
date: 2026
source: {title: A study, identifier: study 1, locator: Table 1, primary_read: yes, value_from: primary}
kind: quality
metric: accuracy
value: 70.0
unit: "%"
aggregate: single setting
rate_of: not applicable
status: measured
baseline:
  model: the same model at one token per step
  value: 73.0
  same_gpu: yes
  same_engine: yes
  engine: lm-eval
  devices: 1
  kv_cache: no
  synthetic: no
hardware: not applicable
precision: float32
concurrency: not applicable
prompt_tokens: not applicable
output_tokens: 256
decode:
  method: low-confidence remasking
  cache: none
  block_length: 32
  steps: 128
  schedule: fixed
  threshold: not applicable
  tokens_per_step: 2
quality:
  benchmark: GSM8K
  documents: 1319
  shots: 5
  metric: accuracy
  at_speed: 70.0
  reference: 73.0
  reference_is: the same model at one token per step
  same_runs: yes
counts: not applicable
time_includes: not applicable
"""

HONEST = {"sweep": SWEEP, "replicated": REPLICATED, "score": SCORE}


def claim_of(text: str, **changes: Any) -> Claim:
    """The claim with fields replaced; `__` descends, as in baseline__same_gpu="no"."""
    fields = parse_document(text).data
    for path, value in changes.items():
        *groups, last = path.split("__")
        place = fields
        for group in groups:
            place = place[group]
        place[last] = value
    return Claim.model_validate(fields)
