"""The four layers of settings, and the refusals, which are all reported at once."""

import re
from operator import attrgetter
from pathlib import Path

import attrs
import pytest
import tomli
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.source_tree import CHECKOUT
from tlserve.config.declared import declared_settings
from tlserve.config.environment import OTHER_VARIABLES
from tlserve.config.load import load_settings, load_with_sources
from tlserve.config.settings import SamplingSettings, Settings
from tlserve.errors import SettingsError


def written(folder: Path, text: str) -> Path:
    path = folder / "runtime.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusals(path: Path | None, environ: dict[str, str], overrides: list[tuple[str, str]]) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        load_settings(path, environ, overrides)
    return caught.value.refusals


@pytest.mark.spec("SET-1")
def test_runtime_toml_and_env_overrides(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        [engine]
        model_dir = "artifacts/models/smol-135m/v3"
        http_listen = ":8000"
        health_listen = ":9464"
        prefix_cache = "hash"
        prefill_chunk = 512
        queue_capacity = 7
        """,
    )
    plain = load_settings(path, {}, []).engine
    assert (plain.model_dir, plain.http_listen, plain.health_listen) == (
        "artifacts/models/smol-135m/v3",
        ":8000",
        ":9464",
    )
    assert (plain.prefix_cache, plain.prefill_chunk, plain.queue_capacity) == ("hash", 512, 7)
    assert (plain.queue_deadline_ms, plain.speculative) == (30_000, "none")

    environ = {"TL_ENGINE__QUEUE_CAPACITY": "9", "TL_ENGINE__SPECULATIVE": "prompt_lookup", "UNRELATED": "x"}
    tuned = load_settings(path, environ, []).engine
    assert (tuned.queue_capacity, tuned.speculative, tuned.prefill_chunk) == (9, "prompt_lookup", 512)

    bad = written(
        tmp_path, '[engine]\nno_such_key = 1\nprefill_chunk = "many"\nprefix_cache = "lru"\nmax_num_seqs = 0\n'
    )
    assert len(refusals(bad, {"TL_ENGINE__QUEUE_CAPACITY": "-1", "TL_ENGINE__NOPE": "1"}, [])) == 6


def test_without_any_layer_the_defaults_serve() -> None:
    assert load_settings(None, {}, []) == Settings()


@pytest.mark.spec("SET-9")
def test_the_shipped_file_states_the_defaults_and_listens_on_loopback() -> None:
    settings = load_settings(CHECKOUT / "runtime.toml", {}, [])
    assert settings == Settings()
    assert settings.engine.http_listen.startswith("127.0.0.1:")
    assert settings.engine.health_listen.startswith("127.0.0.1:")


@pytest.mark.spec("SET-9")
def test_the_shipped_files_comments_state_the_defaults_too() -> None:
    text = (CHECKOUT / "runtime.toml").read_text(encoding="utf-8")
    shown = "\n".join(line.removeprefix("# ") if " = " in line else line for line in text.splitlines())
    document = tomli.loads(shown)
    defaults = {table: {key: row.default for key, row in rows.items()} for table, rows in declared_settings().items()}
    for table, values in document.items():
        for key, value in values.items():
            assert (tuple(value) if isinstance(value, list) else value) == defaults[table][key]


@pytest.mark.spec("SET-1")
def test_each_layer_wins_over_the_one_before_and_is_named_as_source(tmp_path: Path) -> None:
    path = written(tmp_path, "[http]\nmax_body_bytes = 1\nmax_header_count = 2\nmax_json_depth = 3\n")
    environ = {"TL_HTTP__MAX_HEADER_COUNT": "20", "TL_HTTP__MAX_JSON_DEPTH": "30"}
    loaded = load_with_sources(path, environ, [("http.max_json_depth", "300")])
    http = loaded.settings.http
    assert (http.max_body_bytes, http.max_header_count, http.max_json_depth) == (1, 20, 300)
    assert loaded.sources == {
        "http.max_body_bytes": str(path),
        "http.max_header_count": "variable TL_HTTP__MAX_HEADER_COUNT",
        "http.max_json_depth": "command line",
    }


@pytest.mark.spec("SET-8")
def test_a_key_without_a_table_on_the_command_line_is_in_the_engine_table() -> None:
    assert load_settings(None, {}, [("max_num_seqs", "3")]).engine.max_num_seqs == 3


def test_the_later_of_two_command_line_values_wins() -> None:
    assert load_settings(None, {}, [("max_num_seqs", "3"), ("engine.max_num_seqs", "4")]).engine.max_num_seqs == 4


@pytest.mark.spec("SET-5")
def test_texts_are_typed_by_their_field() -> None:
    given = [("model_id", "3"), ("threads", "3"), ("model_aliases", "a, b,,c")]
    engine = load_settings(None, {"TL_LOG__LEVEL": "debug"}, given).engine
    assert (engine.model_id, engine.threads, engine.model_aliases) == ("3", 3, ("a", "b", "c"))


@pytest.mark.spec("SET-2")
def test_all_refusals_of_all_layers_come_in_one_error(tmp_path: Path) -> None:
    path = written(tmp_path, "[engine]\nmax_nun_seqs = 1\nthreads = 1.5\n[http]\nmax_body_bytes = 0\n[htp]\n")
    found = refusals(path, {"TL_ENGINE__KERNELS": "fast"}, [("log.level", "loud"), ("x.y", "1")])
    assert found == (
        f"{path}: there is no setting 'max_nun_seqs' in [engine]; did you mean 'max_num_seqs'?",
        f"{path}: engine.threads must be a whole number, not a fraction ('1.5')",
        f"{path}: http.max_body_bytes must be at least 1 bytes, not 0",
        f"{path}: there is no table [htp]; did you mean 'http'?",
        "variable TL_ENGINE__KERNELS: engine.kernels must be one of auto, native, reference, amx, "
        "avx512vnni, avxvnni, avx2, neondot, neon, not 'fast'",
        "command line: log.level must be one of debug, info, warning, error, not 'loud'",
        "command line: there is no table [x]; known are engine, loading, http, access, tls, cors, "
        "responses, log, telemetry, fleet",
    )


@pytest.mark.spec("SET-3", "SET-4", "SET-18")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[engine]\nmax_num_seqs = true\n", "must be a whole number, not a boolean ('True')"),
        ("[engine]\nmodel_dir = 3\n", "must be a text, not a whole number ('3')"),
        ("[engine]\nmodel_aliases = 'a'\n", "must be a list of texts, not a text ('a')"),
        ("[engine]\nmodel_aliases = [1]\n", "must be a list of texts, not a list"),
        ("[engine]\nmodel_id = {a = 1}\n", "must be a text, not a table"),
        ("[engine]\nmax_num_seqs = 1025\n", "must be at most 1_024 sequences, not 1_025"),
        ("[http]\nidle_timeout_ms = 0\n", "must be at least 1 ms, not 0"),
        ("[engine]\nhttp_listen = '8000'\n", "'8000' is not an address: write ':8000'"),
        ("[engine]\nhttp_listen = ''\n", "is not an address"),
        ("[engine]\nmax_body_bytes = 1\n", "it belongs to [http]"),
        ("max_num_seqs = 1\n", "'max_num_seqs' is not in a table: write it below [engine]"),
        ("engine = 1\n", "'engine' must be a table"),
        ("[[models]]\n", "models[0].model_dir is missing"),
        ("models = 3\n", "'models' must be a list of tables: write [[models]]"),
        ("[models]\nmodel_dir = 'x'\n", "there is no table [models]; write [[models]]"),
        (
            "[[models]]\nmodel_dir = 'x'\nmodel_di = 'y'\n",
            "there is no setting 'model_di' in [models[0]]; did you mean",
        ),
        ("[[models]]\nmodel_dir = 'x'\nhttp_listen = ':1'\n", "there is no setting 'http_listen' in [models[0]]"),
        ("[[models]]\nmodel_dir = 'x'\nthreads = -1\n", "models[0].threads must be at least 0 threads"),
        ("[[models]]\nmodel_dir = 'smol-135m'\n", "2 models have the id 'smol-135m'"),
        ("[engine\n", "line 1, column 8"),
        ("[engine]\nthreads = 1\nthreads = 2\n", "line 3, column 12"),
    ],
)
def test_a_refusal_names_valid_values(text: str, words: str, tmp_path: Path) -> None:
    (refusal,) = refusals(written(tmp_path, text), {}, [])
    assert words in refusal


@pytest.mark.spec("SET-2")
def test_a_malformed_file_does_not_hide_the_refusals_of_the_other_layers(tmp_path: Path) -> None:
    assert len(refusals(written(tmp_path, "["), {"TL_ENGINE__THREADS": "x"}, [("y", "1")])) == 3


@pytest.mark.spec("SET-4")
def test_a_file_that_cannot_be_read_is_a_refusal(tmp_path: Path) -> None:
    assert "cannot be read" in refusals(tmp_path / "absent.toml", {}, [])[0]
    assert "cannot be read" in refusals(tmp_path, {}, [])[0]
    path = tmp_path / "latin.toml"
    path.write_bytes(b"# \xff")
    assert "is not UTF-8: byte 2" in refusals(path, {}, [])[0]


@pytest.mark.spec("SET-4")
@pytest.mark.parametrize("value", ["9" * 5000, "[" * 5000, "{a=" * 5000])
def test_a_file_with_a_value_too_long_or_too_deep_is_a_refusal(tmp_path: Path, value: str) -> None:
    (refusal,) = refusals(written(tmp_path, f"[engine]\nthreads = {value}\n"), {}, [])
    assert "cannot be read" in refusal
    assert len(refusal) < 400


def test_an_empty_health_address_switches_the_port_off() -> None:
    assert load_settings(None, {}, [("health_listen", "")]).engine.health_listen == ""


@pytest.mark.spec("SET-6")
@pytest.mark.parametrize("name", ["TL_ENGINE__", "TL_ENGINE__A__B", "TL_HTTP__THREADS"])
def test_a_malformed_variable_is_refused_by_its_name(name: str) -> None:
    (refusal,) = refusals(None, {name: "1"}, [])
    assert refusal.startswith(f"variable {name}: there is no setting")


@pytest.mark.spec("SET-6")
@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("TL_ACCES__API_KEY", "there is no table [acces]; did you mean 'access'?"),
        ("TL__ACCESS__API_KEY", "did you mean 'access'?"),
        ("TL_ACCESS_API_KEY", "TL_ACCESS__API_KEY"),
        ("TL_ACESS_API_KEY", "TL_ACCESS__API_KEY"),
        ("TLS_ACCESS__API_KEY", "TL_ACCESS__API_KEY"),
        ("tl_access__api_key", "TL_ACCESS__API_KEY"),
        ("TL_ENGINE_SAMPLING_TOP_P", "TL_ENGINE__SAMPLING__TOP_P"),
        ("TL_MODELS_CACHE", "TL_MODEL_CACHE"),
        ("TL_NO_TABLE__X", "there is no table [no_table]"),
        ("TL_MODELS__MODEL_DIR", "there is no table [models]"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_nearest_name(name: str, near: str) -> None:
    (refusal,) = refusals(None, {name: KEY}, [])
    assert refusal.startswith(f"variable {name}: there is no")
    assert near in refusal
    assert KEY not in refusal


@pytest.mark.spec("SET-24")
@pytest.mark.parametrize(
    "name",
    [
        *OTHER_VARIABLES,
        "TL_ENGINE_PORT",
        "TL_ENGINE_SERVICE_HOST",
        "TL_ENGINE_SERVICE_PORT_HTTP",
        "TL_ACCESS_PORT_80_TCP_ADDR",
        "TL_FLEET_HEADLESS_PORT_80_TCP",
        "TL_LUNCH",
        "TLS_CERTIFICATE_FILE",
        "MY_TL_ENGINE__THREADS",
    ],
)
def test_variables_of_other_programs_are_ignored(name: str) -> None:
    assert load_settings(None, {name: "tcp://10.0.0.1:80"}, []) == Settings()


def test_every_variable_that_the_package_names_is_a_setting_or_a_listed_one() -> None:
    named = {
        name
        for path in (CHECKOUT / "tlserve").rglob("*.py")
        for name in re.findall(r"\bTL_[A-Z0-9_]*[A-Z0-9]\b", path.read_text(encoding="utf-8"))
    }
    examples = {"TL_ENGINE__KEY", "TL_ENGINE__SAMPLING__KEY", "TL_ENGINE_PORT_80_TCP_ADDR"}
    others = named - examples - OTHER_VARIABLES.keys()
    assert {"TL_FLEET__INTERNAL_KEY", "TL_ACCESS__API_KEY"} <= others
    tables = declared_settings()
    for table, _, key in (name.removeprefix("TL_").lower().partition("__") for name in others):
        assert key in tables[table]


@pytest.mark.spec("SET-7")
def test_a_relative_model_dir_is_in_the_files_folder_if_it_exists_there(tmp_path: Path) -> None:
    path = written(tmp_path, '[engine]\nmodel_dir = "succ"\n')
    assert load_settings(path, {}, []).engine.model_dir == "succ"
    (tmp_path / "succ").mkdir()
    assert load_settings(path, {}, []).engine.model_dir == str(tmp_path / "succ")
    assert load_settings(path, {}, [("model_dir", "succ")]).engine.model_dir == "succ"


def test_every_default_is_a_valid_value_of_its_setting() -> None:
    rows = [row for table in declared_settings().values() for row in table.values()]
    texts = [
        (row.name, ",".join(row.default) if isinstance(row.default, tuple) else str(row.default))
        for row in rows
        if not (row.is_secret or row.default is None)  # no value at all, unlike an empty text
    ]
    assert load_settings(None, {}, texts) == Settings()


@pytest.mark.spec("SET-10")
def test_every_number_has_a_unit_and_both_bounds() -> None:
    rows = [row for table in declared_settings().values() for row in table.values()]
    numbers = [row for row in rows if type(row.default) is int]
    assert [row.name for row in numbers if not row.unit or row.low is None or row.high is None] == []


@pytest.mark.spec("SET-10")
@settings(deadline=None)
@given(data=st.data())
def test_a_bounded_number_is_accepted_exactly_within_its_bounds(data: st.DataObject) -> None:
    rows = [row for table in declared_settings().values() for row in table.values() if row.low is not None]
    row = data.draw(st.sampled_from(rows))
    assert row.low is not None
    assert row.high is not None
    value = data.draw(st.integers(int(row.low) - 2, int(row.high) + 2) | st.sampled_from([row.low, row.high]))
    if row.low <= value <= row.high:
        settings = load_settings(None, {}, [(row.name, str(value))])
        assert attrgetter(row.name)(settings) == value
    else:
        assert row.unit in refusals(None, {}, [(row.name, str(value))])[0]


@pytest.mark.spec("SET-16")
@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False), ("True", True)])
def test_a_boolean_is_written_as_in_toml(text: str, value: bool, tmp_path: Path) -> None:
    assert load_settings(None, {"TL_ACCESS__ALLOW_PUBLIC": text}, []).access.allow_public is value
    file = written(tmp_path, f"[access]\nallow_public = {text.lower()}\n")
    assert load_settings(file, {}, []).access.allow_public is value


@pytest.mark.spec("SET-16")
@pytest.mark.parametrize("text", ["1", "yes", ""])
def test_another_word_for_a_boolean_is_refused(text: str) -> None:
    (line,) = refusals(None, {"TL_ACCESS__ALLOW_PUBLIC": text}, [])
    assert line.endswith(f"access.allow_public must be true or false, not {text!r}")


KEY = "sk-0123456789-abcdef"


@pytest.mark.spec("SET-15", "ACC-47")
@pytest.mark.parametrize(
    "key", ["", "short", "aaaaaaaaaaaaaaaaaaaaaaaa", "0123456789 abcdef", "0123456789abcdef\u00e9"]
)
def test_an_empty_or_weak_key_is_refused_and_never_quoted(key: str) -> None:
    (line,) = refusals(None, {"TL_ACCESS__API_KEY": key}, [])
    assert line.startswith("variable TL_ACCESS__API_KEY: access.api_key ")
    assert not key or key not in line


@pytest.mark.spec("SET-15")
def test_a_key_of_the_wrong_type_is_also_never_quoted(tmp_path: Path) -> None:
    (line,) = refusals(written(tmp_path, "[access]\napi_key = 1234567890\n"), {}, [])
    assert "1234567890" not in line


@pytest.mark.spec("SET-15")
def test_no_representation_of_the_settings_contains_a_key() -> None:
    settings = load_settings(None, {"TL_ACCESS__API_KEY": KEY}, [])
    assert settings.access.api_key == KEY
    assert KEY not in repr(settings)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("access.public_routes", "/healthz"),
        ("access.public_routes", "get /healthz"),
        ("cors.allow_origins", "app.example.com"),
        ("cors.allow_origins", "https://app.example.com/"),
        ("http.unix_socket_mode", "rw"),
        ("http.unix_socket_mode", "0888"),
        ("http.unix_socket_mode", "7777"),
        ("http.unix_socket_mode", ""),
        ("engine.http_listen", "unix:relative.sock"),
        ("engine.http_listen", "unix:/" + "x" * 100),
    ],
)
def test_a_value_of_the_wrong_form_is_refused_by_name(name: str, text: str) -> None:
    (line,) = refusals(None, {}, [(name, text)])
    assert line.startswith(f"command line: {name} ")


@pytest.mark.spec("SET-11")
def test_a_unix_socket_is_an_address_to_listen_on() -> None:
    listen = load_settings(None, {}, [("http_listen", "unix:/run/tlserve/api.sock")]).engine.http_listen
    assert listen == "unix:/run/tlserve/api.sock"


@pytest.mark.spec("SET-7")
def test_relative_paths_are_in_the_files_folder_if_they_exist_there(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text("", encoding="utf-8")
    path = written(tmp_path, '[access]\nkeys_file = "keys.toml"\n[tls]\ncertificate = "nowhere.pem"\n')
    settings = load_settings(path, {}, [])
    assert settings.access.keys_file == str(tmp_path / "keys.toml")
    assert settings.tls.certificate == "nowhere.pem"


@pytest.mark.spec("SET-19")
def test_the_operators_sampling_is_a_table_inside_the_engine_table(tmp_path: Path) -> None:
    path = written(tmp_path, "[engine.sampling]\ntemperature = 1\ntop_p = 0.5\ntop_k = 7\n")
    assert load_settings(path, {}, []).engine.sampling == SamplingSettings(temperature=1.0, top_p=0.5, top_k=7)
    environ = {"TL_ENGINE__SAMPLING__TOP_P": "0.25", "TL_ENGINE__SAMPLING__MIN_P": "0.1"}
    loaded = load_with_sources(path, environ, [("engine.sampling.temperature", "0"), ("sampling.top_k", "3")])
    sampling = loaded.settings.engine.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.0, 0.25, 3, 0.1)
    assert loaded.sources["engine.sampling.top_p"] == "variable TL_ENGINE__SAMPLING__TOP_P"


@pytest.mark.spec("SET-20")
def test_a_second_model_has_its_own_sampling(tmp_path: Path) -> None:
    text = "[engine.sampling]\ntop_k = 7\n[[models]]\nmodel_dir = 'succ'\n[models.sampling]\ntop_p = 0.5\n"
    (model,) = load_settings(written(tmp_path, text), {}, []).models
    assert model.sampling == SamplingSettings(top_p=0.5)


@pytest.mark.spec("SET-19")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("temperature = 'hot'", "engine.sampling.temperature must be a number, not a text ('hot')"),
        ("temperature = true", "must be a number, not a boolean"),
        ("temperature = nan", "must be a number, not a fraction ('nan')"),
        ("temperature = 3", "engine.sampling.temperature must be at most 2"),
        ("top_p = 0", "must be at least 1e-06"),
        ("top_k = 1.5", "must be a whole number"),
        (
            "temprature = 1",
            "there is no setting 'sampling.temprature' in [engine]; did you mean 'sampling.temperature'?",
        ),
    ],
)
def test_impossible_sampling_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (refusal,) = refusals(written(tmp_path, f"[engine.sampling]\n{text}\n"), {}, [])
    assert words in refusal


def test_settings_cannot_be_changed_after_the_load() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        load_settings(None, {}, []).engine.threads = 2  # type: ignore[misc]


# --- [[models]]


@pytest.mark.spec("SET-17", "SET-21")
def test_a_second_model_inherits_missing_keys_from_the_engine_table(tmp_path: Path) -> None:
    text = """
    [engine]
    model_dir = "succ"
    model_aliases = ["a"]
    queue_capacity = 7
    context_tokens = 100
    [[models]]
    model_dir = "other"
    queue_capacity = 3
    [[models]]
    model_dir = "third"
    model_id = "t"
    """
    settings = load_settings(written(tmp_path, text), {"TL_ENGINE__THREADS": "2"}, [("prefill_chunk", "64")])
    shown = [(m.model_dir, m.model_id, m.model_aliases, m.queue_capacity, m.context_tokens) for m in settings.served]
    assert shown == [("succ", "", ("a",), 7, 100), ("other", "", (), 3, 0), ("third", "t", (), 7, 0)]
    assert {(model.threads, model.prefill_chunk) for model in settings.served} == {(2, 64)}


@pytest.mark.spec("SET-17")
def test_a_relative_second_model_is_in_the_files_folder(tmp_path: Path) -> None:
    (tmp_path / "beside.gguf").touch()
    settings = load_settings(written(tmp_path, '[[models]]\nmodel_dir = "beside.gguf"\n'), {}, [])
    assert settings.models[0].model_dir == str(tmp_path / "beside.gguf")
