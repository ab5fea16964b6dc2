"""The command line: verbs, one-line errors, exit codes, JSON, completion."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

import edgepipe
from edgepipe import errors
from edgepipe.lazy import load
from edgepipe.pipeline import cli


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `edgepipe` in a process of its own."""
    command = [sys.executable, "-m", "edgepipe", *arguments]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)


def fail_with(error: BaseException, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a verb that raises ``error``."""

    @click.command("run")
    @click.option("--json", is_flag=True)
    def broken(json: bool) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch, CliRunner().isolation() as (out, err, _):
        patch.setattr(cli, "load", lambda target: broken)
        with pytest.raises(SystemExit) as caught:
            cli.main(["run", *arguments])
        assert isinstance(caught.value.code, int)
        return caught.value.code, out.getvalue().decode(), err.getvalue().decode()


def user_errors() -> list[type[errors.EdgepipeError]]:
    """Every class of the error tree that is raised with a message."""
    found = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.EdgepipeError)
    ]
    found.remove(errors.MissingExtra)
    assert len(found) > 5
    return found


def test_version() -> None:
    done = run("--version")
    assert done.stdout.strip() == f"edgepipe, version {edgepipe.__version__}"
    assert done.returncode == 0


def test_help_lists_every_verb() -> None:
    done = run("--help")
    assert done.returncode == 0
    for verb, (_, short_help) in cli.VERBS.items():
        assert re.search(rf"^  {verb} +{re.escape(short_help)}$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_help_and_the_table_quotes_it(verb: str) -> None:
    target, short_help = cli.VERBS[verb]
    command = load(target)
    assert command.name == verb
    assert command.get_short_help_str(limit=200) == short_help
    done = run(verb, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: edgepipe {verb} ")


def test_a_lack_of_memory_is_one_line() -> None:
    with pytest.raises(MemoryError) as refused:
        bytearray(2**62)
    assert fail_with(refused.value) == (
        1,
        "",
        "error: there is not enough memory: end other programs, or take a smaller model or --budget\n",
    )
    with pytest.raises(MemoryError) as refused:
        np.empty(2**60, np.uint8)
    assert "not enough memory (Unable to allocate 1.00 EiB" in fail_with(refused.value)[2]
    error = json.loads(fail_with(refused.value, "--json")[1])["error"]
    assert (error["type"], error["exit_code"]) == ("MemoryError", 1)


@pytest.mark.parametrize(("typed", "meant"), [("exprot", "export"), ("mesure", "measure"), ("rnu", "run")])
def test_an_unknown_verb_suggests_what_was_meant(typed: str, meant: str) -> None:
    done = run(typed)
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"did you mean '{meant}'?" in done.stderr


def test_an_unknown_verb_like_no_other_lists_all() -> None:
    done = run("zzz")
    assert done.returncode == 2
    assert f"expected one of {', '.join(cli.VERBS)}." in done.stderr


@pytest.mark.parametrize("kind", user_errors())
def test_an_error_is_one_line_and_its_exit_code(kind: type[errors.EdgepipeError]) -> None:
    code, out, err = fail_with(kind("found this,\nexpected that"))
    assert (code, out, err) == (kind.exit_code, "", "error: found this, expected that\n")


@pytest.mark.parametrize("kind", user_errors())
def test_an_error_as_json_is_one_object(kind: type[errors.EdgepipeError]) -> None:
    code, out, err = fail_with(kind("found this"), "--json")
    assert code == kind.exit_code
    assert err == ""
    assert json.loads(out) == {"error": {"type": kind.__name__, "message": "found this", "exit_code": kind.exit_code}}


def test_an_error_of_the_system_names_the_file() -> None:
    code, _, err = fail_with(PermissionError(13, "Permission denied", "/some/where"))
    assert (code, err) == (1, "error: Permission denied: /some/where\n")


def test_an_interrupt_is_one_line() -> None:
    code, out, err = fail_with(KeyboardInterrupt())
    assert (code, out, err.strip()) == (130, "", "error: interrupted")


def test_wrong_usage_as_json() -> None:
    done = run("run", "--no-such-option", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["exit_code"] == 2
    assert done.stderr == ""


def test_json_after_two_dashes_is_text() -> None:
    done = run("zzz", "--", "--json")
    assert done.stdout == ""
    assert "no verb 'zzz'" in done.stderr


def test_a_missing_bundle_is_one_line() -> None:
    done = run("run", "no-such-folder", "Hello")
    assert done.returncode == 1
    assert done.stderr.startswith("error: no-such-folder")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_goes_away_is_not_complained_about() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run([sys.executable, "-m", "edgepipe", "--help"], stdout=write_end, stderr=subprocess.PIPE)
    os.close(write_end)
    assert done.returncode == 1
    assert done.stderr == b""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    done = run("completion", shell)
    assert done.returncode == 0
    assert f"_EDGEPIPE_COMPLETE={shell}_complete" in done.stdout


@pytest.mark.parametrize(
    ("words", "expected"), [("edgepipe ex", "export"), ("edgepipe me", "measure"), ("edgepipe --ver", "--version")]
)
def test_completion_of_verbs(words: str, expected: str) -> None:
    """What the bash script asks for when the user presses the tabulator."""
    environment = {"_EDGEPIPE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "1"}
    done = run(env=os.environ | environment)
    assert done.stdout.split() == [f"plain,{expected}"]


def test_the_package_runs_from_any_folder(tmp_path: Path) -> None:
    assert run("--version", cwd=tmp_path).returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_full_disk_behind_stdout_is_one_line(flags: tuple[str, ...], tiny_bundle: Path) -> None:
    words = ["run", str(tiny_bundle), "hi", "--raw", "--max-new-tokens", "2"]
    command = [sys.executable, "-m", "edgepipe", *words, *flags]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=100)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: No space left on device")
    assert "Traceback" not in done.stderr
