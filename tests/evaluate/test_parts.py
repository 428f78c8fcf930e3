"""Documents in a random order, and the two parts of them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dllm_audit.errors import UsageError
from dllm_audit.evaluate.parts import Part, documents_in_order


def items(*documents: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(doc_id=doc) for doc in documents]


def test_an_order_is_a_shuffle_that_the_seed_and_the_purpose_decide():
    first = documents_in_order(range(100), 0, "documents")
    assert sorted(first) == list(range(100))
    assert first != list(range(100))
    assert first == documents_in_order(reversed(range(100)), 0, "documents")
    assert first != documents_in_order(range(100), 1, "documents")
    assert first != documents_in_order(range(100), 0, "tuning")


def test_the_two_parts_share_no_document_and_leave_none_out_in_the_order_of_the_task():
    listed = items(*range(20))
    tuning, rest = (Part(name, 6).of(listed, 0) for name in ("tuning", "rest"))
    assert len(tuning) == 6
    assert {i.doc_id for i in tuning} | {i.doc_id for i in rest} == set(range(20))
    assert not {i.doc_id for i in tuning} & {i.doc_id for i in rest}
    assert [i.doc_id for i in rest] == sorted(i.doc_id for i in rest)


def test_all_requests_of_a_document_are_in_one_part():
    rest = Part("rest", 1).of(items(0, 0, 1, 1), 0)
    assert len(rest) == 2
    assert len({i.doc_id for i in rest}) == 1


def test_parts_that_leave_nothing_to_judge_are_refused():
    with pytest.raises(UsageError, match=r"--tuning 3 leaves no document to judge the chosen setting: there are 3\."):
        Part("rest", 3).of(items(0, 1, 2), 0)
