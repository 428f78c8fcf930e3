"""The file to start a new claim from: every field with a comment, the ones to fill left empty.

An empty field is refused with a sentence, so `claims validate` leads through the file until it is complete.
"""

from __future__ import annotations

_TEMPLATE = """\
# One published figure. Fill every empty field, then: dllm-audit claims validate {id}.yaml
# Where there is no answer, write which of the four it is:
#   not stated      the part of the source named below was read and does not say
#   unreadable      the primary source could not be opened
#   not recorded    the source says it, but it was not noted when read
#   not applicable  the question does not arise for this kind of claim
# A value that is not one plain number is a group, for example:
#   {{qualifier: up to, high: 1024, wording: max 1024}}    {{qualifier: range, low: 3, high: 5, wording: 3-5x}}
#   {{qualifier: about, number: 30, wording: about 30}}    {{qualifier: words, wording: long prompts}}
schema: 1
id: {id}
statement:            # what is claimed, in one sentence of your own
system:               # the decoder or model family, for example Fast-dLLM
model:                # the checkpoint that was measured
vendor:               # who makes it
reported_by:          # vendor, authors or third-party
date:                 # 2025, 2025-05 or 2025-05-28
source:
  title:
  identifier:         # arXiv:2505.22618, a repository, or the name of a page
  locator:            # table, figure or section
  primary_read:       # yes, partly, abstract only or no
  value_from:         # primary, secondary or source note
kind:                 # throughput, speedup, latency, quality, perplexity, acceptance or artifact
metric:               # what the number is of
value:                # a number without its unit
unit:                 # tok/s, x, s, ms, "%" or points
aggregate:            # single setting, mean, median or best
# best_of: tasks      # with aggregate best: tasks or settings
rate_of:              # one request, all requests, one device, or not applicable
status:               # measured, derived, estimated or modelled
# assembly:           # when it was put together from parts
#   parts: [a measured pass, an assumed number of passes]
#   left_out: [attention over the prompt]
baseline:             # "none", or this group
  model:
  value:
  # unit: tok/s       # where it differs from the claim's
  same_gpu:           # yes or no
  same_engine:        # yes or no
  engine:
  devices:
  kv_cache:           # yes or no
  synthetic: no       # yes when part of it was assumed
hardware:             # one of the four non-answers, or this group
  device:
  count:
precision:            # bf16, FP8 ...
concurrency:          # requests in flight
prompt_tokens:
output_tokens:
decode:
  method:
  cache:              # none, or what is cached and whether exactly
  block_length:
  steps:
  schedule:           # fixed, threshold, adaptive or autoregressive
  threshold:
  tokens_per_step:
quality:              # "none" when the source measured none at this speed, or this group
  benchmark:
  # documents: 1319   # how many it has
  # documents_scored: 200
  shots:
  metric:
  at_speed:           # percent
  reference:
  reference_is:
  same_runs:          # yes when speed and quality come from the same runs
  # claimed_margin_points: 2
counts:               # are other tokens than the answer's in the rate?
  prompt:             # yes, no or suspected
  padding:
time_includes:        # yes, no or partly
  prefill:
  commit_pass:
  fixed_overhead:
# answer_length: {{compared: shorter, ours: 120, baseline: 180, unit: tokens, where: Table 2}}
# checkpoint: {{relation: distilled, what: a distilled checkpoint, where: section 4}}
# prefix_sharing: {{ours: yes, baseline: no}}
# experts: {{total: 64, per_token: 8, reads_counted: experts of one token}}
# figures:            # others that bear on it: same (must agree), part (of what it sums up), context
#   - {{what: throughput behind the ratio, value: 19.3, unit: tok/s, baseline_value: 0.7, relation: same, where: Table 3}}
# contradicts:
#   - {{claim: another-id, finding: what sets the two against each other}}
# replications:
#   - {{who: a rerun, value: 81, unit: tok/s, where: issue 49}}
# recipe:             # what to run to replicate it, in the words of dllm-audit run
#   backend: dualcache
#   model: GSAI-ML/LLaDA-8B-Instruct
#   baseline: uncached
#   baseline_settings: {{gen_length: 256, block_length: 32, tokens_per_step: 1}}
#   task: gsm8k
#   num_fewshot: 5
#   settings: {{gen_length: 256, block_length: 32, threshold: 0.9}}
#   quantity: speed ratio
#   expect: {{low: 8.8, wording: at least 80 % of 11x}}
# notes:              # anything a reader needs, in your own words; no rule reads it
"""


def template(claim_id: str) -> str:
    """The text of a new claim file."""
    return _TEMPLATE.format(id=claim_id)
