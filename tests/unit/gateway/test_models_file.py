from pathlib import Path

import pytest
from numaserve.server.gateway.models.models_file import read_models_file
from numaserve.workers.interface.errors import OperatorError


def written(folder: Path, text: str) -> Path:
    path = folder / "models.yaml"
    path.write_text(text)
    return path


def test_each_model_has_options_of_its_own_and_a_place(tmp_path: Path) -> None:
    read = read_models_file(
        written(
            tmp_path,
            "max-loaded: 2\nload-wait-s: 7\ndefault: small\nmodels:\n"
            "  large: {model: /m/large, tp: 2, nodes: [0, 1], pinned: true}\n"
            "  small: {model: /m/small, task: embed, cores: '4-6,8', memory: 512MiB, load: request,\n"
            "    idle-unload-s: 60}\n",
        )
    )
    assert (read.default, read.max_loaded, read.load_wait_s) == ("small", 2, 7.0)
    assert read_models_file(tmp_path / "models.yaml", max_loaded=3).max_loaded == 3
    large, small = read.models["large"], read.models["small"]
    assert (large.config.model, large.config.tp) == ("/m/large", 2)
    assert (large.place.nodes, large.place.pinned) == ((0, 1), True)
    assert (large.place.load, large.place.idle_unload_s, large.options) == (
        "start",
        None,
        {"model": "/m/large", "tp": 2},
    )
    assert (small.config.task, small.config.memory_gib, small.place.cores) == ("embed", 0.5, (4, 5, 6, 8))
    assert (small.place.load, small.place.idle_unload_s) == ("request", 60.0)


def test_the_first_model_is_the_default_and_a_core_may_be_a_number(tmp_path: Path) -> None:
    read = read_models_file(written(tmp_path, "models:\n  b: {model: demo, cores: 3, nodes: }\n  a: {model: demo}\n"))
    assert read.default == "b"
    assert read.models["b"].place.cores == (3,)


@pytest.mark.parametrize(
    ("keys", "tokens"),
    [
        ("cores: 0-3", 512),
        ("cores: 0-3, chunked-prefill-size: 1024", 1024),
        ("cores: 0-3, memory: 1GiB", None),
        ("nodes: 0", None),
        ("load: request", None),
    ],
)
def test_a_model_that_shares_the_memory_of_a_node_has_short_steps(
    keys: str, tokens: int | None, tmp_path: Path
) -> None:
    spec = read_models_file(written(tmp_path, f"models: {{a: {{model: demo, {keys}}}}}")).models["a"]
    assert spec.config.chunked_prefill_size == spec.options.get("chunked_prefill_size") == tokens


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: demo", "unknown key 'model': did you mean 'models'?"),
        ("models: {}", "models "),
        ("default: a", "'models' is not set"),
        ("models: {a: {}}", "model 'a': 'model' is not set"),
        ("models: {a: {model: demo, tpp: 2}}", "model 'a': unknown key 'tpp': did you mean 'tp'?"),
        ("models: {a: {model: demo, pined: true}}", "did you mean 'pinned'?"),
        ("models: {a: {model: demo, tp: 0}}", "model 'a': tp must be between 1 and 64, not '0'"),
        ("models: {a: {model: demo, tp: 1, tp-size: 1}}", "model 'a': tp is set twice, once as 'tp-size'"),
        ("models: {a: {model: demo, port: 1}}", "model 'a': 'port' is an option of the gateway"),
        (
            "models: {a: {model: demo, nodes: zero}}",
            "nodes must be a node number or a list of node numbers, as in [0, 1]",
        ),
        (
            "models: {a: {model: demo, nodes: [-1]}}",
            "nodes must be a node number or a list of node numbers, as in [0, 1]",
        ),
        ("models: {a: {model: demo, cores: all}}", "cores must be a list of cores such as '0-3,8', not 'all'"),
        ("models: {a: {model: demo, cores: '3-1'}}", "cores must be a list of cores such as '0-3,8', not '3-1'"),
        ("models: {a: {model: demo, cores: 1, nodes: 0}}", "both nodes and cores are set: leave out one of the two"),
        ("models: {a: {model: demo, memory: 40}}", "memory must be a size such as 40GiB or 500MiB, not '40'"),
        ("models: {a: {model: demo, memory: 0GiB}}", "memory must be a size such as 40GiB or 500MiB, not '0GiB'"),
        ("models: {a: {model: demo, load: now}}", "load must be 'start' or 'request', not 'now'"),
        ("models: {a: {model: demo, idle-unload-s: 0}}", "idle_unload_s must be above 0 and at most 31536000, not '0'"),
        ("models: {a: {model: demo}}\nmax-loaded: 0", "max_loaded must be between 1 and 4096, not '0'"),
        ("models: {a: {model: demo}}\ndefault: b", "default is 'b', which is not a model of the file: name one of a"),
        ("models: {a: {model: demo, served-model-name: b}, b: {model: demo}}", "'b' is a name of both 'a' and 'b'"),
        (
            "models: {a: {model: demo, kv-disk-path: /kv/x}, b: {model: demo, kv-disk-path: /kv/y/../x}}",
            "kv_disk_path /kv/y/../x is the folder of both 'b' and 'a': give each model a folder of its own",
        ),
        ("models: {' ': {model: demo}}", "models must not be blank"),
        ("models: {a: demo}", "models must be a valid dictionary"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_model_and_the_key(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(OperatorError) as error:
        read_models_file(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
