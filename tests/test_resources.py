import pytest

from dllm_audit.errors import UsageError
from dllm_audit.resources import resource_folder


def test_in_a_checkout_the_claims_lie_beside_the_package():
    folder = resource_folder("claims")
    assert (folder / "fast-dllm" / "fastdllm-27.6x.yaml").is_file()


def test_another_resource_is_refused_with_the_nearest_one():
    with pytest.raises(UsageError, match=r"^There is no resource folder 'claim'\. Did you mean 'claims'\?$"):
        resource_folder("claim")
