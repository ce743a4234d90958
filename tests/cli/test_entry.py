"""The command line: what each command starts, the form of faults, and a quick start."""

import argparse
import errno
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from tests.kit.source_tree import CHECKOUT
from tlserve import __version__, errors
from tlserve.cli import main, trio_run
from tlserve.cli.commands import COMMANDS
from tlserve.cli.exit_codes import exit_code_of, fault_lines, machine_fault
from tlserve.config.load import load_settings
from tlserve.config.settings import Settings


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=60)


@attrs.define
class Serving:
    """A command in place of `serve` that records the settings."""

    given: list[Settings] = attrs.field(factory=list)
    raised: BaseException | None = None


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Serving:
    from tlserve.cli.settings_arguments import add_settings_arguments, settings_of

    state = Serving()

    class Module:
        add_arguments = staticmethod(add_settings_arguments)

        @staticmethod
        def run(arguments: argparse.Namespace) -> int:
            state.given.append(settings_of(arguments))
            if state.raised:
                raise state.raised
            return 0

    @attrs.frozen
    class Row:
        about: str = "start a server"

        def load(self) -> type[Module]:
            return Module

    monkeypatch.setitem(COMMANDS, "serve", Row())
    return state


@pytest.mark.spec("CLI-5")
def test_importing_the_command_line_imports_nothing_slow() -> None:
    program = "import sys, tlserve.cli; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = set(python("-c", program).stdout.split())
    slow = {
        "numpy",
        "trio",
        "rich",
        "h11",
        "jinja2",
        "tokenizers",
        "gguf",
        "msgspec",
        "prometheus_client",
        "tomli",
        "attr",
    }
    assert "tlserve" in loaded
    assert loaded & (slow - {"attr"}) == set()


@pytest.mark.spec("CLI-1")
def test_every_way_to_start_gives_the_same_settings(serving: Serving) -> None:
    config = ["--config", str(CHECKOUT / "runtime.toml")]
    assert main(["serve", *config]) == 0
    assert main(config) == 0
    assert trio_run(["tlserve", *config]) == 0
    assert trio_run(["tlserve", "serve", *config]) == 0
    assert main([]) == 0
    assert serving.given == [load_settings(CHECKOUT / "runtime.toml", {}, [])] * 5


@pytest.mark.spec("CLI-1")
def test_python_m_tlserve_is_tlserve() -> None:
    assert python("-m", "tlserve", "--version").stdout == f"tlserve {__version__}\n"


@pytest.mark.spec("CLI-2")
def test_the_arguments_win_over_the_file(serving: Serving, tmp_path: Path) -> None:
    config = tmp_path / "runtime.toml"
    config.write_text('[engine]\nhttp_listen = "127.0.0.1:8000"\nmodel_dir = "a"\n')
    base = ["--config", str(config)]
    main([*base, "--model", "succ", "--host", "::1", "--port", "0", "--health-port", "1"])
    main([*base, "--model-dir", "succ", "--set", "engine.http_listen=:1", "--port", "2"])
    main([*base, "--host", "", "--set", "http.max_body_bytes=1000", "--set", "max_num_seqs=2"])
    first, second, third = serving.given
    assert (first.engine.http_listen, first.engine.health_listen) == ("[::1]:0", "127.0.0.1:1")
    assert (second.engine.http_listen, second.engine.model_dir) == (":2", "succ")
    assert third.engine.http_listen == ":8000"
    assert (third.engine.max_num_seqs, third.http.max_body_bytes) == (2, 1000)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "65536"], "'65536' is not a number from 0 to 65535"),
        (["--set", "threads"], "'threads' is not KEY=VALUE"),
        (["--confg", "x"], "there is no argument '--confg', did you mean '--config'?"),
        (["serve", "--modl=x"], "there is no argument '--modl=x', did you mean '--model'?"),
        (["serve", "extra"], "there is no argument 'extra'; `tlserve serve --help` lists the arguments"),
        (["pull"], "the following arguments are required: name; `tlserve pull --help` lists the arguments"),
    ],
)
def test_a_command_line_that_is_not_understood_exits_with_2(
    arguments: list[str], words: str, serving: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tlserve: ")
    assert words in line


def test_an_unknown_command_gets_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sevre"]) == 2
    assert capsys.readouterr().err == "tlserve: there is no command 'sevre'; did you mean 'serve'?\n"
    assert trio_run(["uvicorn"]) == 2


@pytest.mark.spec("CLI-3")
def test_refused_settings_are_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--set", "threads=x", "--set", "log.level=loud"]) == 4
    assert capsys.readouterr().err.splitlines() == [
        "tlserve: command line: engine.threads must be a whole number, not 'x'",
        "tlserve: command line: log.level must be one of debug, info, warning, error, not 'loud'",
    ]


def test_the_settings_are_refused_before_a_server_is_imported() -> None:
    program = "import sys; from tlserve.cli import main; main(['--set', 'threads=x']); print('trio' in sys.modules)"
    assert python("-c", program).stdout == "False\n"


@pytest.mark.spec("CLI-3")
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (errors.DrainCut("x"), 3),
        (errors.SettingsError(("x",)), 4),
        (errors.ModelMissing("x"), 5),
        (errors.ModelRefused("x"), 6),
        (errors.AddressInUse("x"), 7),
        (errors.DownloadFailed("x"), 8),
        (errors.EngineFailed("x"), 9),
        (errors.OperatorError("x"), 10),
        (errors.ServerFault("x"), 1),
    ],
)
def test_a_fault_is_one_line_and_its_code(
    fault: errors.TlserveError, code: int, serving: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(fault) == code
    serving.raised = BaseExceptionGroup("nursery", [ExceptionGroup("nursery", [fault])])
    assert main([]) == code
    assert capsys.readouterr().err == "tlserve: x\n"


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), BaseExceptionGroup("nursery", [KeyboardInterrupt()])])
def test_an_interrupt_is_130_without_a_traceback(
    raised: BaseException, serving: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    serving.raised = raised
    assert main([]) == 130
    assert capsys.readouterr().err == "tlserve: interrupted\n"


@pytest.mark.spec("CLI-4")
@pytest.mark.parametrize("defect", [ValueError("a"), ExceptionGroup("b", [ValueError("a")])])
def test_a_defect_keeps_its_traceback(defect: Exception, serving: Serving) -> None:
    serving.raised = defect
    with pytest.raises(type(defect)):
        main([])


def test_two_faults_at_once_are_not_hidden_behind_one() -> None:
    both = ExceptionGroup("two", [errors.ModelMissing("a"), errors.ModelMissing("b")])
    assert errors.single_cause(both) is both


def test_a_fault_of_several_lines_is_printed_on_one() -> None:
    assert fault_lines(errors.ModelRefused("a\n  b\tc")) == ("a b c",)


def test_every_command_has_arguments_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    top = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert f"  {name} " in top
        assert callable(command.load().run)
        with pytest.raises(SystemExit) as caught:
            main([name, "--help"])
        assert caught.value.code == 0


@pytest.mark.spec("SET-15")
def test_check_config_never_prints_a_key(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TL_ACCESS__API_KEY", "sk-0123456789-abcdef")
    assert main(["check-config"]) == 0
    printed = capsys.readouterr().out
    assert "0123456789" not in printed
    assert "# api_key is set, and not shown: variable TL_ACCESS__API_KEY" in printed


@pytest.mark.spec("CLI-6")
def test_check_config_prints_settings_that_read_back_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TL_ENGINE__THREADS", "2")
    odd = 'a"b\\c\x7fé'
    given = ["--set", f"model_id={odd}", "--set", "model_aliases=x,y", "--set", "http.max_body_bytes=1000"]
    assert main(["check-config", *given]) == 0
    printed = capsys.readouterr().out
    assert "threads = 2  # variable TL_ENGINE__THREADS" in printed
    path = tmp_path / "printed.toml"
    path.write_text(printed, encoding="utf-8")
    overrides = [("model_id", odd), ("model_aliases", "x,y"), ("http.max_body_bytes", "1000"), ("threads", "2")]
    assert load_settings(path, {}, []) == load_settings(None, {}, overrides)


def test_the_exit_codes_are_documented() -> None:
    documented = (CHECKOUT / "specs" / "cli-roles.md").read_text(encoding="utf-8")
    for fault in (
        errors.DrainCut,
        errors.ModelMissing,
        errors.ModelRefused,
        errors.AddressInUse,
        errors.DownloadFailed,
    ):
        assert f"| {exit_code_of(fault('x'))} | `{fault.__name__}` |" in documented


@pytest.mark.parametrize(
    ("output", "code", "line"),
    [(">/dev/full", 10, "tlserve: No space left on device\n"), (">&-", 0, "")],
)
@pytest.mark.parametrize("arguments", ["--version", "check-config", "models --json"])
def test_an_output_that_cannot_be_written_is_one_line(arguments, output, code, line):
    command = f"{sys.executable} -m tlserve {arguments} {output}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (code, line)


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (OSError(errno.EACCES, "", "/cache"), "/cache: Permission denied"),
        (OSError(errno.EROFS, "", "/cache/x"), "/cache/x: Read-only file system"),
        (OSError(errno.ENOSPC, ""), "No space left on device"),
        (MemoryError("9 GB"), "there is not enough memory: 9 GB; use a smaller model or engine.kv_memory_bytes"),
        (OSError(errno.EBADF, ""), ""),
    ],
)
def test_what_the_machine_refuses_is_one_line_and_a_defect_is_not(fault, line):
    assert machine_fault(fault) == line
