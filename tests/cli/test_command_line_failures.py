"""What ends a command beside mistakes: a full disk, no memory, Ctrl-C again and again, and bugs of the program."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dllm_audit.cli import main as main_module
from dllm_audit.cli.main import main

FULL = Path("/dev/full")


@pytest.fixture
def ending(capsys, monkeypatch):
    """ending(error) -> (exit status, stderr) of a command that raises it."""

    def run(error: BaseException) -> tuple[int, str]:
        def fail(*args, **kwargs):
            raise error

        monkeypatch.setattr(main_module.cli, "main", fail)
        with pytest.raises(SystemExit) as end:
            main(["run"])
        return end.value.code, capsys.readouterr().err

    return run


class OutOfMemoryError(RuntimeError):
    """Named as torch names it."""


@pytest.mark.parametrize(
    ("error", "amount"),
    [
        (MemoryError(), "for this"),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has"), "for another 20.00 GiB"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000 bytes. Error code 12"),
            "for another 4000 bytes",
        ),
    ],
)
def test_too_little_memory_is_a_sentence_with_what_to_do(ending, error, amount):
    assert ending(error) == (
        3,
        f"Error: There is not enough memory {amount}: lower --concurrency or --gen-length (of score: --batch-size), "
        "or use a smaller model.\n",
    )


def test_a_disk_without_space_is_a_sentence_and_names_the_file(ending):
    assert ending(OSError(errno.ENOSPC, "No space left on device", "report.html")) == (
        3,
        "Error: report.html cannot be read or written: No space left on device.\n",
    )


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("division by zero"), RuntimeError("mat1 and mat2"), OSError(9, "x")]
)
def test_an_unexpected_error_is_called_a_bug_and_never_passes_for_a_failed_check(ending, error):
    status, err = ending(error)
    assert status == 3
    assert err.startswith("Traceback (most recent call last):\n")
    assert err.splitlines()[-1].startswith("Error: This is a bug of dllm-audit")


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["backends"], ["backends", "--json"], ["--help"]], ids=" ".join)
def test_output_that_cannot_be_written_is_a_sentence(arguments):
    code = f"from dllm_audit.cli.main import main; main({arguments})"
    with FULL.open("w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True)
        assert (done.returncode, done.stderr) == (
            3,
            "Error: The output cannot be read or written: No space left on device.\n",
        )
        # Nothing can be said, and the status still tells.
        assert subprocess.run([sys.executable, "-c", code], stdout=full, stderr=full).returncode == 3


def test_ctrl_c_again_and_again_shows_no_traceback():
    """The first stops the command, the others come while the interpreter leaves."""
    code = """
import atexit, os, signal, sys
from dllm_audit.cli import main as module
def fail(*args, **kwargs):
    raise KeyboardInterrupt
module.cli.main = fail
atexit.register(lambda: [os.kill(os.getpid(), signal.SIGINT) for _ in range(10)])
module.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Interrupted.\n")


def test_a_terminal_that_does_not_know_a_character_shows_its_code(tmp_path):
    """Before, it was reported as a bug."""
    (tmp_path / "漢.jsonl").write_text('{"question": "a", "answer": "#### 1"}\n')
    done = subprocess.run(
        [sys.executable, "-m", "dllm_audit", "data", "import", "gsm8k", str(tmp_path / "漢.jsonl")],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "latin-1", "DLLM_AUDIT_DATA": str(tmp_path / "漢ü")},
    )
    assert done.returncode == 0, done.stderr
    assert rb"\u6f22\xfc/gsm8k." in done.stdout.replace("ü".encode("latin-1"), rb"\xfc")


def test_a_name_of_a_file_that_this_machine_cannot_write_is_a_sentence(ending):
    assert ending(UnicodeEncodeError("ascii", "aü", 1, 2, "ordinal not in range(128)")) == (
        3,
        "Error: 'ü' cannot be written in ascii, which this machine is set to use for text or names of files. "
        "Set PYTHONUTF8=1, or LANG to a UTF-8 locale such as C.UTF-8.\n",
    )


def test_a_lone_surrogate_that_was_to_be_written_as_utf_8_is_still_a_bug(ending):
    assert "This is a bug of dllm-audit" in ending(UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates"))[1]
