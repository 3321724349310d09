import contextlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import SettingsError
from shared.settings import Settings, WorkerSettings
from shared.settings_load import load, to_environment


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(text, name="evenflow.toml"):
    Path(name).write_text(text, encoding="utf-8")
    return name


def mistakes(path=None, environ=None, overrides=None):
    with pytest.raises(SettingsError) as caught:
        load(path, environ or {}, overrides or {})
    return str(caught.value).splitlines()


def test_nothing_given_is_the_defaults():
    loaded = load(None, {})
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"default"}
    assert loaded.origins["workers.0.draft.kind"] == "default"
    assert loaded.origins["models"] == "default"


def test_each_source_beats_the_one_before():
    assert load(None, {"EVENFLOW_PROFILE": "test"}).settings.gateway.port == 0
    write('profile = "test"\n[gateway]\nport = 1001\n')
    assert load(None, {}).settings.gateway.port == 1001
    environ = {"EVENFLOW_GATEWAY__PORT": "1002"}
    assert load(None, environ).settings.gateway.port == 1002
    loaded = load(None, environ, {"gateway.port": 1003})
    assert loaded.settings.gateway.port == 1003
    assert loaded.settings.profile == "test"


def test_origins_name_the_source():
    write('[admin]\nport = 1001\n[telemetry]\nlog_level = "error"\n')
    environ = {"EVENFLOW_PROFILE": "test", "EVENFLOW_GATEWAY__HOST": "::1", "EVENFLOW_TELEMETRY__LOG_LEVEL": "debug"}
    origins = load(None, environ, {"limits.choices": 2}).origins
    assert origins["profile"] == "environment EVENFLOW_PROFILE"
    assert origins["gateway.port"] == "profile test"
    assert origins["admin.port"] == "file evenflow.toml"
    assert origins["gateway.host"] == "environment EVENFLOW_GATEWAY__HOST"
    assert origins["telemetry.log_level"] == "environment EVENFLOW_TELEMETRY__LOG_LEVEL"
    assert origins["limits.choices"] == "command line"
    assert origins["limits.messages"] == "default"


def test_which_file(tmp_path):
    write("[gateway]\nport = 1\n")
    write("[gateway]\nport = 2\n", "other.toml")
    write("[gateway]\nport = 3\n", "third.toml")
    assert load(None, {}).settings.gateway.port == 1
    assert load(None, {"EVENFLOW_CONFIG": "other.toml"}).settings.gateway.port == 2
    loaded = load("third.toml", {"EVENFLOW_CONFIG": "other.toml"})
    assert (loaded.settings.gateway.port, loaded.origins["gateway.port"]) == (3, "file third.toml")


def test_a_file_that_was_asked_for_must_exist():
    assert mistakes("no.toml") == ["--config: cannot read no.toml: No such file or directory"]
    assert mistakes(environ={"EVENFLOW_CONFIG": "no.toml"}) == [
        "EVENFLOW_CONFIG: cannot read no.toml: No such file or directory"
    ]


@pytest.mark.parametrize("text", ["[gateway\n", "\ufeffx = 1", "a = 1\na = 2"])
def test_a_file_that_is_no_toml_is_named(text):
    (line,) = mistakes(write(text))
    assert line.startswith("evenflow.toml: is not TOML: ")


def test_every_mistake_is_listed_with_its_path():
    write(
        'frob = 1\n[gateway]\nprot = 3\nport = "x"\n[nats]\nurl = 5\n[store]\nurl = "mysql://u:hush@h/d"\n'
        '[[workers]]\nslots = 0\n[workers.draft]\nkind = "magic"\n[[models]]\nmodel = "m"\n'
    )
    lines = mistakes(environ={"EVENFLOW_LIMITS__CHOICES": "many"})
    starts = [line.split(": ")[0] for line in lines]
    assert starts == [
        "frob",
        "gateway.prot",
        "gateway.port",
        "nats.url",
        "workers.0.slots",
        "workers.0.draft.kind",
        "models.0.name",
        "limits.choices",
        "store.url",
    ]
    assert "did you mean port?" in lines[1]
    assert lines[2] == "gateway.port: 'x' from file evenflow.toml; must be an integer from 0 to 65535"
    assert lines[5].endswith("must be one of model, ngram, none")
    assert (
        lines[7] == "limits.choices: 'many' from environment EVENFLOW_LIMITS__CHOICES; must be an integer, at least 1"
    )
    assert "hush" not in "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        ('[nats]\ncredentials = ["hunter2"]', {}),
        ('[nats]\npassword = "hunter2"', {}),
        ("", {"EVENFLOW_NATS__CREDENTIAL": "hunter2"}),
        ("", {"EVENFLOW_STORE__URL": "postgresql://me:hunter2@db/x"}),
        ("", {"EVENFLOW_STORE__URL": "postgresql://db/x?password=hunter2"}),
        ("", {"EVENFLOW_STORE__URL": "me:hunter2@db"}),
    ],
)
def test_no_message_holds_a_secret(text, environ):
    write(text)
    assert "hunter2" not in "\n".join(mistakes(environ=environ))


@pytest.mark.parametrize("value", ["inf", "nan", "-1.0", "0"])
def test_a_time_is_positive_and_finite(value):
    (line,) = mistakes(environ={"EVENFLOW_LIMITS__QUEUE_S": value})
    assert line.startswith("limits.queue_s: ")
    assert line.endswith("must be a number above 0")


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("gateway.port", "81", 81),
        ("limits.queue_s", "1.5", 1.5),
        ("limits.queue_s", "2", 2.0),
        ("workers.0.prefix_cache", "false", False),
        ("workers.0.version", "7", "7"),
        ("gateway.name", "null", "null"),
        ("tls.certificate", "", ""),
    ],
)
def test_variables_are_read_by_the_type_of_their_key(path, text, value):
    variable = "EVENFLOW_" + path.replace(".", "__").upper()
    given: object = load(None, {variable: text, "EVENFLOW_TLS__KEY": ""}).settings
    for part in path.split("."):
        given = given[int(part)] if part.isdecimal() else getattr(given, part)  # type: ignore[index]
    assert given == value
    assert type(given) is type(value)


def test_a_file_is_read_strictly():
    write('[workers]\nslots = 3\n[gateway]\nport = true\nkeepalive_s = 7\nhost = 5\n[admin]\nport = "8081"')
    assert [line.split(": ")[0] for line in mistakes()] == ["workers", "gateway.host", "gateway.port", "admin.port"]


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("EVENFLOW_GATEWAY__PROT", "did you mean gateway.port?"),
        ("EVENFLOW_GATEWY__PORT", "did you mean gateway.port?"),
        ("EVENFLOW_GATEWAY_HOST", "did you mean EVENFLOW_GATEWAY__HOST?"),
        ("EVENFLOW_WORKERS_SLOTS", "did you mean EVENFLOW_WORKERS__0__SLOTS?"),
        ("EVENFLOW_WORKERS__SLOTS", "did you mean workers.0.slots?"),
        ("EVENFLOW_WORKERS__0__DRAFT__KID", "did you mean workers.0.draft.kind?"),
        ("EVENFLOW_GATEWAY", "is a table, not a value"),
        ("EVENFLOW_WORKERS__3__SLOTS", "there are 1 workers"),
        ("EVENFLOW_WORKERS", "must be how many"),
    ],
)
def test_a_variable_that_sets_nothing_is_refused(variable, hint):
    (line,) = mistakes(environ={variable: "x"})
    assert hint in line


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("EVENFLOW_PROVE", "1"),
        ("EVENFLOW_TEST_NATS", "x"),
        ("EVENFLOW_KEY", "ef-x"),
        ("EVENFLOW_HOME", "elsewhere"),
        ("EVENFLOW_SERVICE_HOST", "10.0.0.1"),
        ("EVENFLOW_GATEWAY_SERVICE_PORT_HTTP", "80"),
        ("EVENFLOW_GATEWAY_PORT", "tcp://10.0.0.1:80"),
        ("EVENFLOW_GATEWAY_PORT_80_TCP_ADDR", "10.0.0.1"),
        ("HOME", "x"),
    ],
)
def test_variables_of_others_are_left_alone(variable, value):
    assert load(None, {variable: value}).settings == Settings()


def test_a_list_of_workers():
    write('[[workers]]\nslots = 2\n[[workers]]\nname = "big"\n[workers.draft]\nlength = 9\n')
    environ = {"EVENFLOW_WORKERS__1__SLOTS": "8", "EVENFLOW_WORKERS__2__POOL": "p"}
    workers = load(None, environ).settings.workers
    assert [(w.name, w.slots, w.pool, w.draft.length) for w in workers] == [
        ("w1", 2, "default", 5),
        ("big", 8, "default", 9),
        ("w3", 4, "p", 5),
    ]


def test_so_many_workers_are_copies_of_the_first():
    write('[[workers]]\nname = "a"\nslots = 2\n[[workers]]\nname = "b"\nslots = 3')
    grown = load(None, {}, {"workers": 4, "workers.*.engine": "null", "workers.3.slots": 9}).settings.workers
    assert [(w.name, w.slots, w.engine) for w in grown] == [
        ("a", 2, "null"),
        ("b", 3, "null"),
        ("w3", 2, "null"),
        ("w4", 9, "null"),
    ]
    (only,) = load(None, {"EVENFLOW_WORKERS": "1"}).settings.workers
    assert only.name == "a"
    empty = load(None, {"EVENFLOW_WORKERS": "0"})
    assert (empty.settings.workers, empty.origins["workers"]) == ((), "environment EVENFLOW_WORKERS")


def test_a_whole_list_replaces():
    write("[[workers]]\nslots = 2\ncontext = 99")
    (worker,) = load(None, {}, {"workers": [{"slots": 3}]}).settings.workers
    assert worker == WorkerSettings(slots=3)


def test_the_null_engine_serves_the_model_null_unless_told():
    overrides = {"workers": [{"engine": "null"}, {"engine": "null", "model": "mine"}]}
    assert [w.model for w in load(None, {}, overrides).settings.workers] == ["null", "mine"]


def test_an_unknown_profile():
    lines = mistakes(environ={"EVENFLOW_PROFILE": "production"})
    assert lines == ["profile: 'production' from environment EVENFLOW_PROFILE; must be one of dev, prod, test"]


def _settings():
    def section(kind):
        chosen = {}
        for field in msgspec.structs.fields(kind):
            kind_of = field.type
            if field.name in {"workers", "models", "profile", "path", "certificate", "client_ca", "host"}:
                continue
            if isinstance(kind_of, type) and issubclass(kind_of, msgspec.Struct):
                chosen[field.name] = section(kind_of)
            elif field.name in {"slots", "context", "messages", "choices"}:
                chosen[field.name] = st.integers(1, 10**9)
            elif field.name.endswith("_s"):
                chosen[field.name] = st.floats(0.001, 1e9)
            elif field.name in {"directory", "otlp_endpoint", "credentials", "identities"}:
                chosen[field.name] = st.text()
            elif field.name == "prefix_cache":
                chosen[field.name] = st.booleans()
        return st.builds(kind, **chosen)

    workers = st.lists(section(WorkerSettings), max_size=3).map(
        lambda some: tuple(msgspec.structs.replace(worker, name=f"n{i}") for i, worker in enumerate(some))
    )
    return st.builds(lambda tree, some: msgspec.structs.replace(tree, workers=some), section(Settings), workers)


@given(_settings())
def test_settings_handed_on_by_environment_arrive_unchanged(settings):
    assert load(None, to_environment(settings)).settings == settings


@given(st.dictionaries(st.sampled_from(["gateway", "nats", "workers", "models", "profile", "x", "limits"]), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["port", "name", "slots", "0"]), inner),
    max_leaves=8,
)))  # fmt: skip
def test_any_tree_gives_settings_or_a_settings_error(tree):
    with contextlib.suppress(SettingsError):
        assert isinstance(load(None, {}, tree).settings, Settings)
