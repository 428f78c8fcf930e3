"""`dllm-audit claims`: the register of published claims, what each leaves out, and what your own runs say of it."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dllm_audit.analysis.plain import one_line, visible
from dllm_audit.analysis.tables import aligned
from dllm_audit.cli.options import DEFAULT_DATABASE, database_option, json_option
from dllm_audit.cli.terminal import LONGEST_WARNING, say, say_json, warn
from dllm_audit.errors import AuditError, ClaimError, Interrupted, UsageError, did_you_mean

if TYPE_CHECKING:
    from dllm_audit.claims.dossier import Dossier
    from dllm_audit.claims.registry import Registry
    from dllm_audit.claims.schema import Claim, Recipe
    from dllm_audit.claims.traps import Trap
    from dllm_audit.claims.verdicts import Check, Number

KINDS = ("throughput", "speedup", "latency", "quality", "perplexity", "acceptance", "artifact")

folder_option = click.option(
    "--claims",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of claim files [default: those of the package].",
)


@click.group(epilog="Example: dllm-audit claims show fastdllm-27.6x")
def command() -> None:
    """Published speed and quality claims: what was said, what was left out, and what your own runs say of it."""


@command.command("list", epilog="Example: dllm-audit claims list --kind speedup --trap uncached_baseline")
@click.option("--system", help="Only claims about systems whose name contains this.")
@click.option("--vendor", help="Only claims of vendors whose name contains this.")
@click.option("--kind", metavar="|".join(KINDS), help="Only claims of this kind.")
@click.option("--trap", help="Only claims that walk into this trap.")
@click.option("--min-score", type=click.FloatRange(0, 1), metavar="X", help="Disclosure of at least X, in 0..1.")
@click.option("--max-score", type=click.FloatRange(0, 1), metavar="X", help="Disclosure of at most X, in 0..1.")
@folder_option
@json_option
def list_claims(
    system: str | None,
    vendor: str | None,
    kind: str | None,
    trap: str | None,
    min_score: float | None,
    max_score: float | None,
    folder: Path | None,
    as_json: bool,
) -> None:
    """List claims: what is claimed, how much the source discloses, how many traps it walks into.

    Disclosure is the share that the source fills of the fields behind the four questions that can be judged, with their
    number: what could not be read is left out of it. With --min-score or --max-score, claims of which nothing could be judged are left out.
    """
    from dllm_audit.claims.dossier import examine, summary_facts

    registry, traps = _registry(folder), _traps()
    if kind is not None and kind not in KINDS:
        raise UsageError(f"There is no kind {kind!r} of claim. {did_you_mean(kind, KINDS)}")
    if trap is not None and trap not in {known.id for known in traps}:
        raise UsageError(f"There is no trap {trap!r}. {did_you_mean(trap, [known.id for known in traps])}")

    def wanted(dossier: Dossier) -> bool:
        claim, share = dossier.claim, dossier.score.share
        return (
            (system is None or system.casefold() in claim.system.casefold())
            and (vendor is None or vendor.casefold() in claim.vendor.casefold())
            and (kind is None or claim.kind == kind)
            and (trap is None or trap in {finding.id for finding in dossier.traps})
            and (min_score is None or (share is not None and share >= min_score))
            and (max_score is None or (share is not None and share <= max_score))
        )

    found = [dossier for claim in registry.claims if wanted(dossier := examine(claim, registry, traps))]
    if as_json:
        say_json([summary_facts(dossier) for dossier in found], indent=2)
        return
    rows: list[tuple[str, ...]] = [("claim", "system", "kind", "value", "disclosed", "traps")]
    for dossier in found:
        facts, share = summary_facts(dossier), dossier.score.share
        disclosed = "-" if share is None else f"{share * 100:.0f} % of {dossier.score.judged_fields}"
        rows.append(
            (
                facts["id"],
                facts["system"],
                facts["kind"],
                _cut(facts["value_text"], 34),
                disclosed,
                str(len(dossier.traps)),
            )
        )
    say(aligned(rows))
    of = "" if len(found) == len(registry.claims) else f" of {len(registry.claims)}"
    say(f"\n{len(found)}{of} claims. Next: dllm-audit claims show ID", err=True)


@command.command("show", epilog="Example: dllm-audit claims show fastdllm-27.6x")
@click.argument("claim", metavar="ID")
@folder_option
@json_option
def show(claim: str, folder: Path | None, as_json: bool) -> None:
    """Show one claim on half a page: what, on what, the four answers, the traps, the physics. ID may be a claim file."""
    from dllm_audit.claims.dossier import as_facts, examine

    registry = _registry(folder)
    dossier = examine(_find(registry, claim), registry, _traps())
    if as_json:
        say_json(as_facts(dossier), indent=2)
    else:
        say(_page(dossier))


@command.command("validate", epilog="Example: dllm-audit claims validate")
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(path_type=Path))
@folder_option
@json_option
def validate(files: tuple[Path, ...], folder: Path | None, as_json: bool) -> None:
    """Check claim files, or the whole registry without any. Exit status 1 when something is wrong.

    Every problem is one line: file, line, what is wrong and what to write.
    """
    from dllm_audit.claims.registry import ClaimProblem, check_files, load_claims

    if files:
        missing = next((path for path in files if not path.is_file()), None)
        if missing is not None:
            raise ClaimError(f"There is no file {missing}. Start one with: dllm-audit claims new my-claim")
        registry = check_files(files, folder)
    else:
        registry = load_claims(folder)
    problems, checked = registry.problems, len(registry.claims)

    def facts(problem: ClaimProblem) -> dict[str, Any]:
        return {"file": str(problem.file), "line": problem.line, "message": problem.message}

    if as_json:
        say_json({"valid": checked, "problems": [facts(problem) for problem in problems]}, indent=2)
    else:
        for problem in problems:
            say(one_line(str(problem), LONGEST_WARNING))
        bad = len({problem.file for problem in problems})
        say(f"{checked} valid." if not bad else f"{bad} {'file is' if bad == 1 else 'files are'} not valid.", err=True)
    if problems:
        sys.exit(1)


@command.command("new", epilog="Example: dllm-audit claims new my-claim -o -")
@click.argument("claim_id", metavar="ID")
@click.option(
    "-o", "output", type=click.Path(path_type=Path, allow_dash=True), help="File to write, - for stdout [ID.yaml]."
)
def new(claim_id: str, output: Path | None) -> None:
    """Write a commented claim file to fill in. It validates once every empty field is filled."""
    import re

    from dllm_audit.claims.template import template

    if not re.fullmatch(r"[a-z0-9]+(?:[.-][a-z0-9]+)*", claim_id):
        raise UsageError(
            f"{claim_id!r} is no id: use small letters, digits, hyphens and full stops, for example fastdllm-27.6x."
        )
    if any(claim.id == claim_id for claim in _registry(None, quiet=True).claims):
        raise UsageError(f"There is a claim {claim_id!r} already: dllm-audit claims show {claim_id}")
    if output is not None and str(output) == "-":
        click.echo(template(claim_id), nl=False)
        return
    path = output or Path(f"{claim_id}.yaml")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(template(claim_id))
    except FileExistsError:
        raise UsageError(f"{path} exists already. Give another file with -o.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}. Give another file with -o.") from error
    say(f"Wrote {path}. Fill it in, then: dllm-audit claims validate {path}", err=True)


@command.command("diff", epilog="Example: dllm-audit claims diff fastdllm-27.6x fastdllm-latency-266s-12s")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@folder_option
@json_option
def diff(first: str, second: str, folder: Path | None, as_json: bool) -> None:
    """Show the fields in which two claims differ. Each may be an id or a claim file."""
    from dllm_audit.claims.difference import differences
    from dllm_audit.claims.dossier import examine

    registry, traps = _registry(folder), _traps()
    claims = _find(registry, first), _find(registry, second)
    found = differences(*claims)
    walked = [[finding.id for finding in examine(claim, registry, traps).traps] for claim in claims]
    if as_json:
        fields = [{"field": d.field, "first": d.first, "second": d.second} for d in found]
        say_json({"claims": [c.id for c in claims], "differences": fields, "traps": walked}, indent=2)
        return
    rows: list[tuple[str, ...]] = [("field", claims[0].id, claims[1].id)]
    rows += [(d.field, _plain(d.first), _plain(d.second)) for d in found]
    for trap in dict.fromkeys([*walked[0], *walked[1]]):
        if (trap in walked[0]) != (trap in walked[1]):
            rows.append((f"trap {trap}", *("yes" if trap in side else "-" for side in walked)))
    if len(rows) == 1:
        say("The two claims differ in nothing but their ids.")
        return
    say(aligned([line for row in rows for line in _folded(row, 46)]))


@command.command("check", epilog="Example: dllm-audit claims check --db dllm-audit.duckdb --strict")
@click.argument("claim_ids", metavar="[ID]...", nargs=-1)
@click.option(
    "--run", "make_runs", is_flag=True, help="First make the runs that the recipes ask for and that are missing."
)
@click.option(
    "--strict",
    is_flag=True,
    help="Exit status 1 when a claim is not reproduced or contradicted, or, without ID, when a claim file is not valid.",
)
@click.option("--mechanisms", is_flag=True, help="Only the recipes on embedded models, which run anywhere in minutes.")
@click.option("--model", metavar="REF", help="Decode with this model instead of the claim's.")
@click.option("--baseline-model", metavar="REF", help="Decode the baseline with this model instead of the claim's.")
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="With --run: the first N documents of each task."
)
@click.option("--device", metavar="DEVICE", help="With --run: auto, cpu, cuda, cuda:N or mps.")
@click.option("--allow-code-execution", is_flag=True, help="With --run: let tasks execute code that the model wrote.")
@click.option(
    "--allow-task-files",
    is_flag=True,
    help="With --run: let recipes name task files, which may run Python code of their own (!function) with your rights.",
)
@folder_option
@database_option
@json_option
def check(
    claim_ids: tuple[str, ...],
    make_runs: bool,
    strict: bool,
    mechanisms: bool,
    model: str | None,
    baseline_model: str | None,
    limit: int | None,
    device: str | None,
    allow_code_execution: bool,
    allow_task_files: bool,
    folder: Path | None,
    database: Path,
    as_json: bool,
) -> None:
    """Say which claims the results at hand support. Without ID: all that have a recipe.

    A recipe names the runs to compare, the quantity and where it must lie. Recipes on the embedded models show the
    mechanism behind a claim, never the speed of a GPU. Each verdict lists its runs, its rule and its numbers.
    """
    from dllm_audit.claims.verdicts import EACH_FOR_ITSELF, check_claims
    from dllm_audit.store.database import Store

    if (limit or device or allow_code_execution or allow_task_files) and not make_runs:
        raise UsageError(
            "--limit, --device, --allow-code-execution and --allow-task-files say how --run makes the runs. Give --run too."
        )
    registry = _registry(folder)
    claims = [_find(registry, claim_id) for claim_id in claim_ids]
    left_out = sorted({str(problem.file) for problem in registry.problems}) if not claims else []
    if not claims:
        claims = [claim for claim in registry.claims if claim.mechanisms or claim.recipe is not None]
    if mechanisms:
        claims = [_embedded_only(claim) for claim in claims]
        claims = [claim for claim in claims if claim.mechanisms or claim_ids]
    if make_runs:
        options = ["--device", device] if device else []
        options += ["--allow-code-execution"] if allow_code_execution else []
        _run(claims, database, model, baseline_model, limit, options, allow_task_files)
    if database.exists():
        with Store.open(database) as store:
            checks = check_claims(claims, store, database, model, baseline_model)
    else:
        checks = check_claims(claims, None, database, model, baseline_model)
    if as_json:
        facts = {
            "database": str(database),
            "checks": [found.as_dict() for found in checks],
            "left_out": left_out,
            "note": EACH_FOR_ITSELF,
        }
        say_json(facts, indent=2)
    else:
        more = [] if folder is None else ["--claims", str(folder)]
        more += [] if str(database) == DEFAULT_DATABASE else ["--db", str(database)]
        say(_verdicts(checks, brief=not claim_ids, more=more))
    failing = sum(found.fails for found in checks)
    if strict and failing:
        say(f"{failing} of {len(checks)} checks failed.", err=True)
    if strict and left_out:
        amount = "1 claim file is" if len(left_out) == 1 else f"{len(left_out)} claim files are"
        say(
            f"{amount} not valid, so what {'it claims' if len(left_out) == 1 else 'they claim'} was not checked. See: dllm-audit claims validate",
            err=True,
        )
    if strict and (failing or left_out):
        sys.exit(1)


def _embedded_only(claim: Claim) -> Claim:
    """The claim with none but the recipes that run on the embedded models."""
    return claim.model_copy(update={"recipe": None, "mechanisms": [m for m in claim.mechanisms if m.is_embedded]})


def _run(
    claims: list[Claim],
    database: Path,
    model: str | None,
    baseline_model: str | None,
    limit: int | None,
    options: Sequence[str],
    allow_task_files: bool,
) -> None:
    """Make the runs that the recipes of `claims` ask for and that the database lacks.

    A claim file may come from anybody, so what it names is never a file that runs code, unless that was allowed.
    """
    from dllm_audit.claims.recipes import commands, sides_of
    from dllm_audit.cli.run import command as run_command
    from dllm_audit.evaluate.loading import is_task_file
    from dllm_audit.plugins import load_plugins
    from dllm_audit.store.database import Store

    recipes: list[tuple[str, Recipe, str | None, str | None]] = []
    for claim in claims:
        recipes += [] if claim.recipe is None else [(claim.id, claim.recipe, model, baseline_model)]
        recipes += [(claim.id, mechanism, None, None) for mechanism in claim.mechanisms]
    if not recipes:
        raise ClaimError(
            "None of these claims has a recipe, so there is nothing to run. See: dllm-audit claims show ID"
        )
    known = load_plugins().backends
    for claim_id, recipe, ours, theirs in recipes:
        lacking = [name for name in (recipe.backend, recipe.baseline) if name is not None and name not in known]
        if lacking:
            say(
                f"A recipe of {claim_id} cannot be run here: it needs the backend {lacking[0]!r}, which is not "
                "installed. Install the plugin that has it; see: dllm-audit backends",
                err=True,
            )
            continue
        if is_task_file(recipe.task) and not allow_task_files:
            say(
                f"A recipe of {claim_id} is not run: its task {recipe.task!r} is a file, and a task file may run Python code "
                "of its own with your rights. Read the file, then add --allow-task-files.",
                err=True,
            )
            continue
        for planned in commands(recipe, sides_of(recipe, ours, theirs), limit):
            if database.exists():
                with Store.open(database) as store:
                    runs = store.runs()
                if planned.is_done(runs):
                    continue
            say(planned.line(database), err=True)
            arguments = [*planned.arguments[1:], "--db", str(database), *options]
            try:
                # Its table goes to stderr: stdout is for the verdicts.
                with contextlib.redirect_stdout(sys.stderr):
                    run_command.main(
                        arguments, prog_name="dllm-audit run", standalone_mode=False, obj=["run", *arguments]
                    )
            except SystemExit as ended:
                if ended.code:
                    say("Some requests failed; the verdict counts with what was answered.", err=True)
            except Interrupted:
                raise
            except (AuditError, click.UsageError) as problem:
                say(f"A recipe of {claim_id} cannot be run here: {one_line(str(problem), LONGEST_WARNING)}", err=True)


def _verdicts(checks: Sequence[Check], brief: bool, more: Sequence[str] = ()) -> str:
    """One paragraph a check; in brief, what fails comes first and those without any runs are only counted.

    more: the options with which the command that makes runs finds the same claims and results.
    """
    from dllm_audit.claims.verdicts import EACH_FOR_ITSELF

    shown = [found for found in checks if not (brief and found.verdict == "not comparable here" and not found.runs)]
    if brief:
        order = ["contradicted", "not reproduced", "undecided", "reproduced with a caveat", "reproduced"]
        shown.sort(key=lambda found: order.index(found.verdict) if found.verdict in order else len(order))
    lines: list[str] = []
    for found in shown:
        label = " [mechanism]" if found.scope == "mechanism" and "mechanism" not in found.outcome else ""
        lines.append(f"{found.outcome.upper()}{label}  {found.claim}")
        lines += _field("shows" if found.scope == "mechanism" else "claimed", found.shows)
        lines += _field("tested", found.tested) if found.tested else []
        if found.rule:
            lines += _field("rule", f"{found.quantity}: {found.rule}")
        lines += _field("because", found.reason)
        # The first is in the reason already.
        lines += _field("numbers", "; ".join(_amount(n) for n in found.numbers[1:])) if found.numbers[1:] else []
        # Without an interval the reason says it already.
        if found.numbers and found.numbers[0].low is not None:
            lines += _field("basis", f"{found.numbers[0].basis}; {found.numbers[0].status}")
        for caveat in found.caveats:
            lines += _field("caveat", caveat)
        if found.runs:
            lines += _field("runs", ", ".join(found.runs))
        lines += _field("not tested", found.not_tested) if found.not_tested else []
        lines += [
            f"  {'next' if not n else '':<12}{one_line(line, 4000)}" for n, line in enumerate(found.next_commands)
        ]
        lines.append("")
    counts = Counter(found.outcome for found in checks)
    lines.append("; ".join(f"{n} {verdict}" for verdict, n in counts.most_common()) + ".")
    if sum(found.obstacle is None for found in checks) > 1:
        lines.append(EACH_FOR_ITSELF)
    if any(found.embedded for found in shown):
        lines.append(
            "A mechanism is looked for with small models on this machine, under a rule of its own: that says something of the "
            "cause behind a claim, nothing of its number and nothing of a GPU's speed."
        )
    hidden = list(dict.fromkeys(found.claim for found in checks if found not in shown))
    if hidden:
        few = ", ".join(hidden[:3]) + (f" and {len(hidden) - 3} more" if len(hidden) > 3 else "")
        lines.append(f"No runs for a recipe of {few}.")
        if any(found.embedded for found in checks if found not in shown):
            make = shlex.join(["dllm-audit", "claims", "check", "--run", "--mechanisms", *more])
            lines.append(f"To make those on embedded models, in minutes: {one_line(make, 4000)}")
        else:
            lines.append(f"What to run: dllm-audit claims check {hidden[0]}")
    return "\n".join(lines)


def _amount(number: Number) -> str:
    value = "unknown" if number.value is None else f"{number.value:.4g}"
    interval = "" if number.low is None or number.high is None else f" ({number.low:.4g} to {number.high:.4g})"
    return f"{number.name} {value}{interval} {number.unit}"


def _page(dossier: Dossier) -> str:
    """Half a page of text."""
    from dllm_audit.claims.dossier import amount, disclosure
    from dllm_audit.claims.questions import describe
    from dllm_audit.claims.schema import Gap

    claim = dossier.claim
    who = {"vendor": "the vendor", "authors": "the authors", "third-party": "a third party"}[claim.reported_by]
    lines = [
        one_line(f"{claim.id}: {amount(claim.value, claim.unit)}, {claim.metric}", 1000),
        *_wrapped(claim.statement, ""),
        "",
        *_field(
            "claimed",
            f"{claim.system} ({claim.vendor}), reported by {who}, {claim.date}; {claim.status}, {claim.aggregate}",
        ),
    ]
    device, count = str(claim.hardware.device), claim.hardware.count
    if not isinstance(claim.hardware.device, Gap):
        device = f"{device}, count {count}" if isinstance(count, Gap) else f"{describe(count)} x {device}"
    lines += _field(
        "on",
        f"{claim.model}; hardware {device}; precision {claim.precision}; concurrency {describe(claim.concurrency)}; "
        f"prompt {describe(claim.prompt_tokens)}; output {describe(claim.output_tokens)}",
    )
    if claim.baseline is not None:
        base = claim.baseline
        lines += _field("against", f"{base.model}: {amount(base.value, base.unit or claim.unit)}; engine {base.engine}")
    read = {
        "yes": "read",
        "partly": "partly read",
        "abstract only": "only its abstract was read",
        "no": "could not be read",
    }
    source = claim.source
    lines += _field("source", f"{source.title}, {source.identifier}, {source.locator} ({read[source.primary_read]})")
    lines += ["", f"Disclosed: {disclosure(dossier.score)}."]
    for answer in dossier.answers:
        # A single field without an answer has no more to say than its status.
        alone = answer.reason.casefold() == f"{answer.label} {answer.status}."
        lines += _field(answer.label, f"{answer.status}." if alone else f"{answer.status}. {answer.reason}")
    lines.append("")
    if dossier.traps:
        lines.append(f"Why that matters: {len(dossier.traps)} {'trap' if len(dossier.traps) == 1 else 'traps'}.")
        for finding in dossier.traps:
            lines += _wrapped(f"- {finding.title} ({finding.id}): {finding.sentence}", "  ", first="")
    else:
        lines.append("No trap is known to be in it.")
    if dossier.disputes:
        lines += ["", "Contradicted by other claims:"]
        for dispute in dossier.disputes:
            lines += _wrapped(f"- {dispute.claim}: {dispute.finding}", "  ", first="")
    if claim.replications:
        lines += ["", "Measured by others:"]
        for copy in claim.replications:
            lines += _wrapped(f"- {copy.who}: {amount(copy.value, copy.unit)} ({copy.where})", "  ", first="")
    if claim.about_speed:
        physics = dossier.physics
        lines += [
            "",
            *_wrapped(" ".join([f"Physics (modelled): {physics.sentence}", *physics.assumptions]), "  ", first=""),
        ]
        if physics.sources:
            lines += _wrapped(f"Figures: {'; '.join(physics.sources)}.", "  ", first="  ")
    if claim.recipe is not None or claim.mechanisms:
        what = [] if claim.recipe is None else ["a recipe with the claim's own checkpoint"]
        what += [f"{len(claim.mechanisms)} on other models, for its mechanism"] if claim.mechanisms else []
        lines += ["", f"To check: {' and '.join(what)}. dllm-audit claims check {claim.id}"]
    return "\n".join(lines)


def _field(label: str, text: str) -> list[str]:
    return _wrapped(text, " " * 14, first=f"  {label:<12}")


def _wrapped(text: str, indent: str, first: str | None = None) -> list[str]:
    import textwrap

    # Names of models and runs have hyphens: they are copied, so they stay whole.
    return textwrap.wrap(
        visible(text),
        100,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )


def _registry(folder: Path | None, quiet: bool = False) -> Registry:
    """The claims; files that were refused are named on stderr."""
    from dllm_audit.claims.registry import load_claims

    registry = load_claims(folder)
    if not quiet:
        for problem in registry.problems:
            warn(f"left out: {problem}")
    return registry


def _traps() -> tuple[Trap, ...]:
    from dllm_audit.claims.traps import load_traps

    traps, problems = load_traps()
    for problem in problems:
        warn(problem)
    return traps


def _find(registry: Registry, name: str) -> Claim:
    """The claim with that id, or the one in that file."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return registry.get(name)
    from dllm_audit.claims.registry import read_claim

    file = read_claim(path)
    if file.claim is None:
        raise ClaimError("\n".join(one_line(str(problem), LONGEST_WARNING) for problem in file.problems))
    return file.claim


def _plain(value: object) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _folded(row: Sequence[str], width: int) -> list[tuple[str, ...]]:
    """A row of a table as lines: every cell but the first is wrapped at `width`, and nothing is cut."""
    import textwrap
    from itertools import zip_longest

    cells = [textwrap.wrap(visible(cell), width, break_on_hyphens=False) or [""] for cell in row[1:]]
    return list(zip_longest([row[0]], *cells, fillvalue=""))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
