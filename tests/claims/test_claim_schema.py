import pytest
from honest_claims import HONEST, SWEEP, claim_of
from pydantic import ValidationError

from dllm_audit.claims.document import parse_document
from dllm_audit.claims.schema import Claim, Gap, Stated, bounds_of, number_of


@pytest.mark.parametrize("name", HONEST)
def test_a_claim_survives_being_written_as_json_and_read_again(name):
    claim = claim_of(HONEST[name])
    again = Claim.model_validate_json(claim.model_dump_json(by_alias=True))
    assert again == claim


def test_the_four_non_answers_are_different_values():
    values = {claim_of(SWEEP, precision=str(gap)).precision for gap in Gap}
    assert values == set(Gap)
    assert len(values) == 4


@pytest.mark.parametrize(
    ("quantity", "number", "bounds"),
    [
        (27.6, 27.6, (27.6, 27.6)),
        (Stated(qualifier="about", number=10, wording="about 10"), 10, (10, 10)),
        (Stated(qualifier="up to", high=10, wording="up to 10"), 10, (None, 10)),
        (Stated(qualifier="above", low=6, wording="above 6"), 6, (6, None)),
        (Stated(qualifier="range", low=1, high=2, wording="1 to 2"), None, (1, 2)),
        (Stated(qualifier="several", parts={"a": 1, "b": 2}, wording="1 / 2"), None, (None, None)),
        (Stated(qualifier="words", wording="small"), None, (None, None)),
        (Gap.NOT_STATED, None, (None, None)),
    ],
)
def test_a_quantity_is_one_number_or_has_ends_or_neither(quantity, number, bounds):
    assert number_of(quantity) == number
    assert bounds_of(quantity) == bounds


def test_another_version_of_the_schema_is_refused():
    with pytest.raises(ValidationError):
        Claim.model_validate({**parse_document(SWEEP).data, "schema": 2})


def test_a_claim_that_was_read_does_not_change():
    with pytest.raises(ValidationError):
        claim_of(SWEEP).value = 2.0


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_a_value_that_is_not_finite_is_refused(number):
    with pytest.raises(ValidationError, match="is not a finite number"):
        claim_of(SWEEP, value=number)
