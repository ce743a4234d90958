"""Models of a hub: pulled completely and checked, listed, removed; with a stand-in of the hub on the loopback interface."""

import json
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from tests.kit.cli.hub_stand_in import HubStandIn, Repository, open_hub_stand_in
from tlserve.cli import main
from tlserve.cli.pull.command import pull, pull_if_missing
from tlserve.cli.pull.hub_files import HubFile, choose_files
from tlserve.config.hub_names import parse_hub_name
from tlserve.config.model_id import served_model_id
from tlserve.config.paths import find_model
from tlserve.errors import DownloadFailed

ONE, TWO = "1" * 40, "2" * 40
WEIGHTS = bytes(range(256)) * 9000
FILES = {
    ".gitattributes": b"x",
    "README.md": b"# a model",
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": WEIGHTS,
    "tokenizer.json": b"{}",
    "pytorch_model.bin": b"a pickle",
}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with open_hub_stand_in() as hub:
        hub.repositories["org/tiny"] = [
            Repository(ONE, dict(FILES), ("main", "v1.0"), lfs=frozenset({"model.safetensors"}))
        ]
        for name, value in {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "TL_MODEL_CACHE": str(tmp_path / "cache"),
            "NO_PROXY": "127.0.0.1",
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def repository(hub: HubStandIn) -> Repository:
    return hub.repositories["org/tiny"][0]


def visible(cache: Path) -> list[str]:
    """Return the files of the cache that are not locks."""
    return sorted(str(p.relative_to(cache)) for p in cache.rglob("*") if p.is_file() and p.name != "lock")


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("org/name", ("org", "name", "")),
        ("Org-1/na.me_2@main", ("Org-1", "na.me_2", "main")),
        ("org/name@refs/pr/1", ("org", "name", "refs/pr/1")),
        ("name", None),
        ("../name", None),
        ("org/../x", None),
        ("org/na--me", None),
        ("org/name@", None),
        ("org/name@../x", None),
        ("/org/name", None),
        ("org/name/more", None),
        ("./name", None),
        ("org/na me", None),
    ],
)
def test_a_name_has_an_organisation_and_optionally_a_revision(text, parts):
    found = parse_hub_name(text)
    assert (None if found is None else attrs.astuple(found)) == parts
    if found is not None:
        assert str(found) == text


def test_the_served_id_of_a_hubs_model_is_its_name():
    assert served_model_id("HuggingFaceTB/SmolLM2-135M-Instruct") == "SmolLM2-135M-Instruct"


# --- pulling ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("CLI-19")
def test_a_pull_gets_the_files_of_a_model_and_prints_their_source(hub, cache, capsys):
    assert main(["pull", "org/tiny"]) == 0
    place = cache / "org--tiny" / "v1"
    assert capsys.readouterr().out.strip() == str(place)
    assert visible(cache) == [
        f"org--tiny/v1/{name}" for name in ("config.json", "model.safetensors", "source.json", "tokenizer.json")
    ]
    assert (place / "model.safetensors").read_bytes() == WEIGHTS
    source = json.loads((place / "source.json").read_text())
    assert (source["name"], source["commit"], source["from"]) == ("org/tiny", ONE, f"{hub.url}/org/tiny")
    assert find_model("org/tiny") == place


@pytest.mark.spec("CLI-20")
def test_a_known_commit_is_not_fetched_again_and_a_new_one_is_a_version(hub, cache):
    first = pull("org/tiny")
    hub.asked.clear()
    assert pull("org/tiny") == first
    assert hub.files_asked() == []
    changed = {**FILES, "config.json": b"{}"}
    hub.repositories["org/tiny"] = [
        attrs.evolve(repository(hub), revisions=("v1.0",)),
        Repository(TWO, changed, lfs=frozenset({"model.safetensors"})),
    ]
    second = pull("org/tiny")
    assert (first.name, second.name) == ("v1", "v2")
    assert (first / "config.json").read_bytes() == FILES["config.json"]
    assert find_model("org/tiny") == second
    assert find_model(f"org/tiny@{ONE[:12]}") == first
    assert find_model("org/tiny@v9") is None


@pytest.mark.spec("CLI-28")
def test_a_revision_is_pulled_and_found_by_its_name(hub, cache):
    place = pull("org/tiny@v1.0")
    assert find_model("org/tiny@v1.0") == place
    assert ("GET", "/api/models/org/tiny/revision/v1.0", "") in hub.asked


@pytest.mark.slow
@pytest.mark.spec("CLI-21")
def test_an_interrupted_transfer_continues_where_it_stopped(hub, cache, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
    repository(hub).cut_at, repository(hub).cuts = 1_000_000, 1
    place = pull("org/tiny")
    assert (place / "model.safetensors").read_bytes() == WEIGHTS
    assert [asked[2] for asked in hub.asked if asked[1].endswith("model.safetensors")] == ["", "bytes=1000000-"]


@pytest.mark.spec("CLI-21")
def test_the_part_that_a_killed_pull_left_is_not_fetched_again(hub, cache):
    staged = cache / ".downloads" / "org--tiny" / "commits" / ONE
    staged.mkdir(parents=True)
    (staged / "tokenizer.json").write_bytes(FILES["tokenizer.json"])
    (staged / "model.safetensors.partial").write_bytes(WEIGHTS[:500_000])
    place = pull("org/tiny")
    assert (place / "model.safetensors").read_bytes() == WEIGHTS
    assert "tokenizer.json" not in hub.files_asked()
    assert [asked[2] for asked in hub.asked if asked[1].endswith("model.safetensors")] == ["bytes=500000-"]


def test_a_partial_file_of_another_commit_is_not_used(hub, cache):
    other = cache / ".downloads" / "org--tiny" / "commits" / TWO
    other.mkdir(parents=True)
    (other / "config.json").write_bytes(b"old")
    assert (pull("org/tiny") / "config.json").read_bytes() == FILES["config.json"]
    assert not other.exists()


@pytest.mark.spec("CLI-19", "CLI-27")
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_with_another_hash_is_refused_and_nothing_appears(hub, cache, capsys, name):
    repository(hub).wrong = frozenset({name})
    assert main(["pull", "org/tiny"]) == 8
    assert f"the file fetched for {name} of org/tiny is not the expected one" in capsys.readouterr().err
    assert find_model("org/tiny") is None
    repository(hub).wrong = frozenset()
    assert (pull("org/tiny") / name).read_bytes() == FILES[name]


@pytest.mark.spec("CLI-22")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("org/tiny@v7", "org/tiny has no revision 'v7'"),
        ("org/nothing", "has no model org/nothing; if it is private, set HF_TOKEN"),
    ],
)
def test_a_model_or_revision_missing_on_the_hub_is_reported(hub, capsys, name, reason):
    assert main(["pull", name]) == 8
    assert reason in capsys.readouterr().err


@pytest.mark.spec("CLI-22")
def test_a_gated_model_names_the_remedy_and_a_token_gives_access(hub, cache, capsys, monkeypatch):
    repository(hub).gated = True
    assert main(["pull", "org/tiny"]) == 8
    error = capsys.readouterr().err
    assert f"org/tiny is gated: accept its terms at {hub.url}/org/tiny, then set HF_TOKEN" in error
    monkeypatch.setenv("HF_TOKEN", "good")
    assert find_model("org/tiny") is None
    assert main(["pull", "org/tiny"]) == 0


@pytest.mark.spec("CLI-22")
def test_a_hub_that_fails_is_one_line(hub, capsys):
    hub.status = 418
    assert main(["pull", "org/tiny"]) == 8
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"tlserve: cannot fetch org/tiny from {hub.url}: ")


def test_a_commit_that_is_not_a_hash_is_refused(hub, cache, capsys):
    repository(hub).commit = "../../outside"
    assert main(["pull", "org/tiny"]) == 8
    assert "the hub names a commit '../../outside'" in capsys.readouterr().err
    assert visible(cache) == [] if cache.exists() else True


@pytest.mark.spec("CLI-19")
def test_file_names_that_would_leave_the_folder_are_ignored(hub, cache):
    good = [
        {"rfilename": "config.json", "size": len(FILES["config.json"]), "blobId": "0" * 40},
        {"rfilename": "../../model-00001-of-00002.safetensors", "size": 1, "blobId": "0" * 40},
    ]
    repository(hub).listing = good
    with pytest.raises(DownloadFailed, match="neither safetensors nor a GGUF file"):
        pull("org/tiny")


@pytest.mark.spec("CLI-22")
def test_without_the_package_the_extra_is_named():
    script = (
        "import sys; sys.modules['huggingface_hub'] = None\n"
        "from tlserve.cli import main; sys.exit(main(['pull', 'org/tiny']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 10
    assert done.stderr == "tlserve: a model of a hub needs the package huggingface_hub: pip install 'tlserve[hub]'\n"


@pytest.mark.spec("CLI-12")
def test_serve_pull_fetches_a_hubs_model_that_is_not_there(hub, cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "tiny").mkdir(parents=True)
    pull_if_missing("org/tiny")  # a folder of that name is used
    assert hub.asked == []
    (tmp_path / "org" / "tiny").rmdir()
    pull_if_missing("org/tiny")
    assert find_model("org/tiny") is not None
    hub.asked.clear()
    pull_if_missing("org/tiny")
    assert hub.asked == []


# --- which files -----------------------------------------------------------------------------------------------------


def listed(*names: str) -> list[HubFile]:
    return [HubFile(path=name, size_bytes=1, sha256="a") for name in names]


@pytest.mark.spec("CLI-19")
@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (("model.safetensors", "model-00001-of-00001.safetensors"), ["model.safetensors"]),
        (
            ("model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json"),
            ["model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
        ),
        (
            ("config.json", "chat_template.jinja", "model.safetensors", "onnx/model.onnx"),
            ["chat_template.jinja", "config.json", "model.safetensors"],
        ),
        (("1_Pooling/config.json", "model.safetensors"), ["1_Pooling/config.json", "model.safetensors"]),
        (("README.md", "only.gguf"), ["only.gguf"]),
        (("consolidated.safetensors", "x.gguf"), ["x.gguf"]),
        (("x-00001-of-00002.gguf", "x-00002-of-00002.gguf"), ["x-00001-of-00002.gguf", "x-00002-of-00002.gguf"]),
    ],
)
def test_safetensors_with_their_files_are_chosen_else_the_one_gguf(names, chosen):
    assert [file.path for file in choose_files(listed(*names), "org/x")] == chosen


@pytest.mark.parametrize(
    ("files", "gguf", "reason"),
    [
        (listed("README.md", "a.bin"), "", "neither safetensors nor a GGUF"),
        (listed("a.Q4_0.gguf", "b.Q8_0.gguf"), "", "2 GGUF files; choose one with --file: a.Q4_0.gguf, b.Q8_0.gguf"),
        (listed("a.gguf"), "b.gguf", "has no GGUF file 'b.gguf'; it has a.gguf"),
        ([HubFile(path="a.gguf", size_bytes=3)], "", "gives no hash for a.gguf"),
        (listed("a-00001-of-00002.gguf"), "", "is one of 2 files of a model, and org/x does not have a-00002-of-00002"),
        (listed("a-00001-of-00002.gguf", "b.gguf"), "a-00001-of-00002.gguf", "does not have a-00002-of-00002.gguf"),
        (listed(*(f"model-{i:05}-of-02000.safetensors" for i in range(2000))), "", "in 2000 files"),
    ],
)
def test_a_repository_without_a_model_is_refused(files, gguf, reason):
    with pytest.raises(DownloadFailed, match=reason):
        choose_files(files, "org/x", gguf)


def test_the_name_of_one_shard_chooses_all_files_of_its_model():
    files = listed("a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "b.gguf")
    chosen = choose_files(files, "org/x", "a-00002-of-00002.gguf")
    assert [file.path for file in chosen] == ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"]


def test_one_gguf_of_several_is_chosen_by_its_name(hub, cache):
    hub.repositories["org/quantised"] = [Repository(ONE, {"a.gguf": b"GGUF a", "b.gguf": b"GGUF b"})]
    assert main(["pull", "org/quantised", "--file", "b.gguf"]) == 0
    assert visible(cache) == ["org--quantised/v1/b.gguf", "org--quantised/v1/source.json"]
    assert main(["pull", "org/quantised", "--file", "a.gguf"]) == 0
    assert visible(cache)[2:] == ["org--quantised/v2/a.gguf", "org--quantised/v2/source.json"]


# --- listing and removing ---------------------------------------------------------------------------------


@pytest.mark.spec("CLI-23")
def test_models_lists_built_in_and_pulled_models(hub, cache, capsys):
    pull("org/tiny@v1.0")
    assert main(["models", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["version"]) for row in rows] == [("succ", ""), ("org/tiny", "v1")]
    assert rows[1]["source"] == f"{hub.url}/org/tiny @v1.0 {ONE[:12]}"
    assert rows[1]["size_bytes"] > len(WEIGHTS)
    assert main(["models"]) == 0
    table = capsys.readouterr().out
    assert "org/tiny" in table
    assert "2.3 MB" in table


@pytest.mark.spec("CLI-23")
def test_models_of_an_empty_cache_are_the_built_in_ones(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TL_MODEL_CACHE", str(tmp_path / "nowhere"))
    assert main(["models", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["succ"]


@pytest.mark.spec("CLI-24")
def test_rm_removes_all_versions_or_the_one_of_a_revision(hub, cache, capsys):
    pull("org/tiny@v1.0")
    hub.repositories["org/tiny"].append(Repository(TWO, dict(FILES), ("v2.0",)))
    pull("org/tiny@v2.0")
    assert main(["rm", "org/tiny@v1.0", "--yes"]) == 0
    assert (find_model("org/tiny@v1.0"), find_model("org/tiny")) == (None, cache / "org--tiny" / "v2")
    assert main(["rm", "org/tiny", "--yes"]) == 0
    assert "removed org/tiny (v2; 2.3 MB)" in capsys.readouterr().out
    assert not (cache / "org--tiny").exists()
    assert visible(cache) == []


def test_rm_also_removes_a_model_of_the_catalogue(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("TL_MODEL_CACHE", str(cache))
    (cache / "smol" / "v1").mkdir(parents=True)
    (cache / "smol" / "v1" / "smol.gguf").write_bytes(b"GGUF")
    assert main(["rm", "smol", "--yes"]) == 0
    assert not (cache / "smol").exists()


@pytest.mark.spec("CLI-24")
@pytest.mark.parametrize("name", ["absent", "../cache", ".downloads", "..", "/etc", "succ", "org/tiny/v1", "org--tiny"])
def test_rm_removes_only_models_that_the_cache_lists(hub, cache, tmp_path, capsys, name):
    pull("org/tiny")
    before = visible(tmp_path)
    assert main(["rm", name, "--yes"]) == 5
    assert visible(tmp_path) == before


@pytest.mark.spec("CLI-24")
def test_rm_follows_no_link_out_of_the_cache(cache, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TL_MODEL_CACHE", str(cache))
    outside = tmp_path / "outside" / "v1"
    outside.mkdir(parents=True)
    (outside / "mine.gguf").write_bytes(b"GGUF")
    cache.mkdir()
    (cache / "mine").symlink_to(tmp_path / "outside")
    assert main(["rm", "mine", "--yes"]) == 10
    assert "is a link to another place" in capsys.readouterr().err
    assert (outside / "mine.gguf").exists()


@pytest.mark.spec("CLI-24")
@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("yes", 0), ("n", 1), ("", 1)])
def test_rm_asks_first(hub, cache, monkeypatch, answer, code):
    pull("org/tiny")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: answer)
    assert main(["rm", "org/tiny"]) == code
    assert (find_model("org/tiny") is None) == (code == 0)


@pytest.mark.spec("CLI-24")
def test_rm_without_a_terminal_needs_yes(hub, cache, monkeypatch, capsys):
    pull("org/tiny")
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert main(["rm", "org/tiny"]) == 10
    assert "use --yes" in capsys.readouterr().err
    assert find_model("org/tiny") is not None
