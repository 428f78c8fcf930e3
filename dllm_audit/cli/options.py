"""Options that several commands share, spelled once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from dllm_audit.errors import SettingError
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


def engine_options(command: Callable) -> Callable:
    """--device, --dtype, --engine and --seed."""
    for option in reversed(
        (
            click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:N or mps."),
            click.option(
                "--dtype",
                type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
                default="auto",
                show_default=True,
                help="Number format; auto is float32 on a CPU and bfloat16 elsewhere.",
            ),
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
