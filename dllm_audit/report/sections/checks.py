"""What the runs of a report say of published claims: a card for each verdict, and why there is none for the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dllm_audit.claims.verdicts import EACH_FOR_ITSELF, Check, Number, Obstacle, Verdict, outcome
from dllm_audit.report.formats import number

if TYPE_CHECKING:
    from dllm_audit.claims.schema import Claim
    from dllm_audit.report.sections.runs import RunRow

#: What fails comes first, as in `claims check`.
ORDER = (
    Verdict.CONTRADICTED,
    Verdict.NOT_REPRODUCED,
    Verdict.UNDECIDED,
    Verdict.CAVEAT,
    Verdict.REPRODUCED,
)


@dataclass(frozen=True)
class CheckRun:
    """A run that a verdict rests on; `row` is None when the report leaves it out, since a newer one took its place."""

    run_id: str
    row: RunRow | None


@dataclass(frozen=True)
class CheckCard:
    """One check with its claim. `anchor`: the id of its card in the page."""

    anchor: str
    check: Check
    claim: Claim
    runs: tuple[CheckRun, ...]

    @property
    def label(self) -> str:
        """Whose models decoded: what the verdict can be about at all."""
        if self.check.embedded:
            return "mechanism, embedded models"
        return "mechanism, other models" if self.check.scope == "mechanism" else "the claim's own recipe"

    @property
    def more_numbers(self) -> tuple[Number, ...]:
        """What the quantity is made of: the quantity itself stands in the reason."""
        return self.check.numbers[1:]


@dataclass(frozen=True)
class ObstacleRow:
    """Why nothing is judged, and of how many claims that is so."""

    obstacle: Obstacle
    claims: int


@dataclass(frozen=True)
class ChecksSection:
    """`cards`: checks with a verdict. `without`: recipes without one. `obstacles`: claims that have no verdict at all."""

    cards: tuple[CheckCard, ...]
    without: tuple[CheckCard, ...]
    obstacles: tuple[ObstacleRow, ...]
    claims: int
    note: str = EACH_FOR_ITSELF

    @property
    def unjudged(self) -> int:
        """Claims of which these runs say nothing."""
        return sum(row.claims for row in self.obstacles)

    @property
    def sentence(self) -> str:
        """The verdicts counted, those on mechanisms apart from those on claims themselves."""
        said = []
        for scope, one, several, limit in (
            (
                "mechanism",
                "mechanism behind published claims was looked for with other models",
                "mechanisms behind published claims were looked for with other models",
                " No published number was tested by that.",
            ),
            (
                "claim",
                "published claim was, by its own recipe, put to the test",
                "published claims were, by their own recipes, put to the test",
                "",
            ),
        ):
            counts = Counter(card.check.verdict for card in self.cards if card.check.scope == scope)
            if counts:
                n = counts.total()
                outcomes = ", ".join(
                    f"{counts[v]} {outcome(scope, v).removeprefix('mechanism ')}" for v in reversed(ORDER) if counts[v]
                )
                said.append(f"{n} {one if n == 1 else several}: {outcomes}.{limit}")
        return " ".join(said) or "No published claim was put to the test by these runs."

    @property
    def no_verdict(self) -> str:
        """How many claims are not comparable here, and why."""
        if not self.unjudged:
            return ""
        why = ", ".join(f"{row.obstacle} ({row.claims})" for row in self.obstacles)
        return f"{self.unjudged} of {self.claims} claims are not comparable here: {why}."

    def of(self, claim_id: str) -> tuple[CheckCard, ...]:
        """The checks of one claim, those with a verdict first."""
        return tuple(card for card in (*self.cards, *self.without) if card.check.claim == claim_id)


def checks_section(checks: Sequence[Check], claims: Sequence[Claim], rows: Mapping[str, RunRow]) -> ChecksSection:
    """Lay out `checks`. rows: the runs of the report by id."""
    by_id = {claim.id: claim for claim in claims}
    cards = [
        CheckCard(
            f"check-{n}",
            check,
            by_id[check.claim],
            tuple(CheckRun(run, rows.get(run)) for run in check.runs),
        )
        for n, check in enumerate(checks, 1)
    ]
    judged = [card for card in cards if card.check.verdict in ORDER]
    with_verdict = {card.check.claim for card in judged}
    # A claim with several recipes counts once, under what stands nearest to a verdict.
    nearest: dict[str, Obstacle] = {}
    steps = list(Obstacle)
    for card in cards:
        found, known = card.check.obstacle, nearest.get(card.check.claim)
        if found is None or card.check.claim in with_verdict:
            continue
        if known is None or steps.index(found) > steps.index(known):
            nearest[card.check.claim] = found
    counts = Counter(nearest.values())
    return ChecksSection(
        cards=tuple(sorted(judged, key=lambda card: ORDER.index(card.check.verdict))),
        without=tuple(
            sorted(
                (c for c in cards if c.check.obstacle not in (None, Obstacle.NO_RECIPE)),
                key=lambda card: (not card.check.runs, card.check.scope != "mechanism"),
            )
        ),
        obstacles=tuple(ObstacleRow(obstacle, n) for obstacle, n in counts.most_common()),
        claims=len(claims),
    )


def quantity(figure: Number) -> str:
    """A number of a verdict with its unit and its interval."""
    unit = {"x": "x", "share": ""}.get(figure.unit, f" {figure.unit}")
    if figure.value is None:
        return "unknown"
    ends = "" if figure.low is None or figure.high is None else f" ({number(figure.low)} to {number(figure.high)})"
    return f"{number(figure.value)}{unit}{ends}"
