"""`python -m tests.gpu [STEP ...]`: every step by default. See the package's docstring."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.gpu.runner import STEPS, run_alone, run_steps


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu",
        description="All checks and benchmarks of a GPU, each in a process of its own.",
        epilog="Steps: " + "; ".join(f"{step.name}: {step.about}" for step in STEPS),
    )
    parser.add_argument("steps", nargs="*", metavar="STEP", help="only these [default: all]")
    parser.add_argument(
        "--device", default="cuda:0", help="cuda:N, or cpu for the dry mode on tiny models [%(default)s]"
    )
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="for all steps; with more, each may take longer [%(default)s]"
    )
    parser.add_argument("--output", type=Path, default=Path("gpu-results.json"), help="results file [%(default)s]")
    parser.add_argument("--alone", metavar="RESULT", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    known = [step.name for step in STEPS]
    unknown = [name for name in given.steps if name not in known]
    if unknown:
        parser.error(f"there is no step {unknown[0]!r}. Known: {', '.join(known)}.")
    if given.minutes <= 0:
        parser.error(f"--minutes {given.minutes:g} leaves no time for anything.")
    chosen = [step for step in STEPS if not given.steps or step.name in given.steps]
    if given.alone is not None:
        run_alone(chosen[0], given.device, given.alone)
        return 0
    return run_steps(chosen, given.device, given.minutes * 60, given.output)


if __name__ == "__main__":
    sys.exit(main())
