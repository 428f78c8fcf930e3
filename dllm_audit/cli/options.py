"""Options that several commands share, spelled once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from dllm_audit.errors import SettingError, UsageError
from dllm_audit.measure.load import LOADS, Load
from dllm_audit.settings import LIKELIHOOD_SETTINGS, SETTINGS

DEFAULT_DATABASE = "dllm-audit.duckdb"

database_option = click.option(
    "--db",
    "database",
    type=click.Path(path_type=Path, dir_okay=False),
    default=DEFAULT_DATABASE,
    envvar="DLLM_AUDIT_DB",
    show_default=True,
    help="Results file [env: DLLM_AUDIT_DB].",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print the same facts as JSON.")


roofline_option = click.option(
    "--roofline/--no-roofline",
    default=True,
    envvar="DLLM_AUDIT_ROOFLINE",
    help="First measure what this device can do at most (about 2 s), so that every run shows its share of that bound, and "
    "what it draws when idle (5 s, where its energy is counted) [default: roofline; env: DLLM_AUDIT_ROOFLINE=0 or 1].",
)

#: Far beyond any device; a number above it is a slip of the keyboard.
MOST_IN_FLIGHT = 65_536


def load_options(command: Callable) -> Callable:
    """--concurrency, --load and --arrival-rate; see `concurrencies_of` and `loads_of`."""
    for option in reversed(
        (
            click.option(
                "--concurrency",
                metavar="N[,N...]",
                help="Requests in flight at most [default: 1; with --load offline: all of them].",
            ),
            click.option(
                "--load",
                type=click.Choice(LOADS),
                help="When requests come: closed, each when a row is free for it; offline, all at once; open, at random "
                "moments at --arrival-rate. In the last two they queue, and their clock runs meanwhile [default: closed].",
            ),
            click.option(
                "--arrival-rate",
                metavar="R[,R...]",
                help="Requests that arrive per second (Poisson, seeded); implies --load open.",
            ),
        )
    ):
        command = option(command)
    return command


def loads_of(load: str | None, arrival_rate: str | None) -> list[Load]:
    """The loads that --load and --arrival-rate mean: one, or one for each rate."""
    if arrival_rate is None:
        return [Load(load or "closed")]
    try:
        rates = [float(part) for part in arrival_rate.split(",")]
    except ValueError:
        raise UsageError(f"--arrival-rate {arrival_rate!r} is no list of numbers, such as 0.5,2.") from None
    if len(set(rates)) != len(rates):
        raise UsageError(f"--arrival-rate {arrival_rate} names one rate twice. Use --repeats to run it several times.")
    return [Load(load or "open", rate) for rate in rates]


def concurrencies_of(text: str | None, loads: Sequence[Load]) -> list[int]:
    """The numbers of --concurrency; by default one, or as many as there are requests where all come at once."""
    if text is None:
        return [MOST_IN_FLIGHT if all(load.kind == "offline" for load in loads) else 1]
    numbers = whole_numbers_of(text, "--concurrency")
    if any(number < 1 for number in numbers):
        raise UsageError(f"--concurrency {text}: at least one request must be in flight.")
    if any(number > MOST_IN_FLIGHT for number in numbers):
        raise UsageError(f"--concurrency {text}: at most {MOST_IN_FLIGHT} requests can be in flight.")
    return numbers


def names_of(text: str, option: str) -> list[str]:
    """The names of a comma-separated list."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError(f"{option} names nothing.")
    if len(set(names)) != len(names):
        raise UsageError(f"{option} {text} names one thing twice. Use --repeats to run it several times.")
    return names


def whole_numbers_of(text: str, option: str) -> list[int]:
    """The numbers of a comma-separated list."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} {text!r} is no list of whole numbers, such as 1,4,8.") from None
    if len(set(numbers)) != len(numbers):
        raise UsageError(f"{option} {text} names one number twice. Use --repeats to run it several times.")
    return numbers


device_option = click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:N or mps.")

dtype_option = click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
    default="auto",
    show_default=True,
    help="Number format; auto is float32 on a CPU and bfloat16 elsewhere.",
)


def engine_options(command: Callable) -> Callable:
    """--device, --dtype, --engine and --seed."""
    for option in reversed(
        (
            device_option,
            dtype_option,
            click.option(
                "--engine",
                type=click.Choice(["auto", "eager", "compile", "cudagraph"]),
                default="auto",
                show_default=True,
                help="How forwards of a fixed shape (the steps of dualcache, block and ar) are executed; auto is eager.",
            ),
            click.option("--seed", type=int, default=0, show_default=True, help="Seed of every random draw."),
        )
    ):
        command = option(command)
    return command


def check_engine(engine: str) -> str:
    """The execution mode that `engine` means."""
    return "eager" if engine == "auto" else engine


def setting_options(several: tuple[str, ...] = (), likelihoods: bool = False) -> Callable[[Callable], Callable]:
    """One option per decode setting, and --set for those that a backend declares itself.

    Settings in `several` take a comma-separated list and arrive as text. likelihoods: also those of log-likelihoods.
    """

    def add(command: Callable) -> Callable:
        command = click.option(
            "--set",
            "extra_settings",
            multiple=True,
            metavar="KEY=VALUE",
            help="Any declared setting; see dllm-audit backends.",
        )(command)
        for setting in reversed((*SETTINGS, *(LIKELIHOOD_SETTINGS if likelihoods else ()))):
            name = "--" + setting.name.replace("_", "-")
            if setting.type is bool:
                option = click.option(f"{name}/--no-{name[2:]}", setting.name, default=None, help=setting.help)
            elif setting.name in several:
                option = click.option(
                    name,
                    setting.name,
                    metavar="X[,X...]",
                    help=setting.help + " Several values make several runs.",
                )
            else:
                metavar = "|".join(setting.choices) or {int: "N", float: "X"}.get(setting.type, "TEXT")
                option = click.option(name, setting.name, metavar=metavar, help=setting.help)
            command = option(command)
        return command

    return add


def given_settings(values: dict[str, Any]) -> dict[str, Any]:
    """Take the setting options out of a command's `values`; `--set` and the option of a name exclude each other."""
    given = {}
    for setting in (*SETTINGS, *LIKELIHOOD_SETTINGS):
        value = values.pop(setting.name, None)
        if value is not None:
            given[setting.name] = value
    for pair in values.pop("extra_settings", ()):
        key, equals, value = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise SettingError(f"--set {pair!r} is not KEY=VALUE, for example --set threshold=0.9.")
        if key in given:
            raise SettingError(f"Setting {key} is given twice. Keep one of them.")
        given[key] = value.strip()
    return given
