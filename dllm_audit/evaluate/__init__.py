"""lm-eval tasks: finding them, their prompts, and their scores. The only place that imports lm_eval."""
