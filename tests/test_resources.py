import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dllm_audit
from dllm_audit.errors import AuditError, UsageError
from dllm_audit.resources import resource_folder


def test_in_a_checkout_the_claims_lie_beside_the_package():
    folder = resource_folder("claims")
    assert (folder / "fast-dllm" / "fastdllm-27.6x.yaml").is_file()


def test_another_resource_is_refused_with_the_nearest_one():
    with pytest.raises(UsageError, match=r"^There is no resource folder 'claim'\. Did you mean 'claims'\?$"):
        resource_folder("claim")


def test_in_a_wheel_the_claims_are_a_package_of_their_own_and_a_strangers_folder_is_not_taken(tmp_path):
    package = tmp_path / "dllm_audit"
    package.mkdir()
    for name in ("__init__.py", "errors.py", "resources.py"):
        shutil.copy(Path(dllm_audit.__file__).parent / name, package)
    (tmp_path / "claims").mkdir()
    (tmp_path / "dllm_audit_claims").mkdir()
    code = "from dllm_audit.resources import resource_folder; print(resource_folder('claims'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path / "dllm_audit_claims")


def test_an_installation_without_its_claims_says_how_to_mend_it(tmp_path, monkeypatch):
    monkeypatch.setattr("dllm_audit.resources.__file__", str(tmp_path / "dllm_audit" / "resources.py"))
    monkeypatch.setattr("dllm_audit.resources.find_spec", lambda name: None)
    with pytest.raises(AuditError, match=r"^This installation has no claims: .* install --force-reinstall dllm-audit$"):
        resource_folder("claims")
