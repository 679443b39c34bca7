"""`numaserve plan` over configurations without weights."""

import json
from pathlib import Path
from typing import Any

import pytest
from numaserve.configs import efficiencies as shipped
from numaserve.server.cli.main import main
from numaserve.workers.bench.shapes import SHAPES

from tests.support.full_shapes import QWEN3_235B

HOST = """
name: two nodes
node-cores: [4, 3]
node-memory-gib: {memory}
node-read-gb-s: 100
core-gflop-s: {{bf16: 1000, int8: 2000}}
link-gb-s: 50
meeting-us: 1
barrier-us: 1
"""


@pytest.fixture
def host(tmp_path: Path) -> str:
    return write_host(tmp_path, 64)


def write_host(folder: Path, memory: float) -> str:
    path = folder / "host.yaml"
    path.write_text(HOST.format(memory=memory))
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main(["plan", *arguments])
    out = capsys.readouterr()
    assert isinstance(exit_.value.code, int)
    return exit_.value.code, out.out, out.err


def record(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> dict[str, Any]:
    file = folder / "plan.jsonl"
    file.unlink(missing_ok=True)
    status, _, errors = run(capsys, *arguments, "--json", str(file))
    assert status in {0, 1}, errors
    made: dict[str, Any] = json.loads(file.read_text())
    assert made["fits"] == (status == 0)
    return made


def test_a_configuration_is_enough_for_a_plan(host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SHAPES["llama-8b"].config()))
    status, out, _ = run(capsys, str(folder), "--host", host)
    assert status == 0
    for text in ("model on two nodes", "prefill, rank", "decode, rank", "add_all_reduce", "TTFT", "TPOT"):
        assert text in out


def test_the_help_and_the_page_explain_the_columns(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--shape", "tiny", "--host", host)
    heads = next(" ".join(line.split()) for line in out.splitlines() if "of bound" in line)
    assert heads == "operation calls MB GFLOP ms share of bound bound by"
    page = (Path(__file__).parents[3] / "docs" / "plan.md").read_text()
    assert [
        name for name in ("calls", "MB", "GFLOP", "ms", "share", "of bound", "bound by") if f"| `{name}` |" not in page
    ] == []
    _, text, _ = run(capsys, "--help")
    assert [name for name in ("MB", "share", "of bound", "bound by") if f"`{name}`" not in text] == []


def test_a_rank_reads_its_weights_and_its_part_of_the_cache_for_a_token(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = record(capsys, tmp_path, "--shape", "llama-8b", "--host", host, "--tp", "1", "--output-len", "2")
    shape = SHAPES["llama-8b"]
    per_layer = (
        2 * shape.hidden * (shape.heads + shape.kv_heads) * shape.head_dim + 3 * shape.hidden * shape.intermediate
    )
    weights = 2 * (shape.layers * per_layer + shape.vocab * shape.hidden)
    cache = 2 * 2 * shape.layers * shape.kv_heads * shape.head_dim * (1024 + 2)
    assert made["decode"]["nbytes"] == weights + cache
    assert made["decode"]["bound_s"] == pytest.approx((weights + cache) / 100e9)
    assert made["tpot_s"] > made["decode"]["bound_s"]


def test_a_host_is_planned_by_what_its_instruction_set_reached(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_amx = tmp_path / "amx.yaml"
    with_amx.write_text(Path(host).read_text() + "isa: amx\n")
    for each, isa in ((host, "avx512"), (str(with_amx), "amx")):
        made = record(capsys, tmp_path, "--shape", "llama-8b", "--host", each)
        given = record(capsys, tmp_path, "--shape", "llama-8b", "--host", each, "--efficiencies", str(shipped()[isa]))
        assert (made["ttft_s"], made["efficiencies"]) == (given["ttft_s"], given["efficiencies"])


def test_a_batch_shares_what_is_read_of_the_weights(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, many = (
        record(capsys, tmp_path, "--shape", "llama-8b", "--host", host, "--batch-size", batch) for batch in ("1", "16")
    )
    assert one["tpot_s"] < many["tpot_s"] < 16 * one["tpot_s"]
    assert many["ttft_s"] == pytest.approx(16 * one["ttft_s"])
    assert many["memory"][0]["kv_cache"] > 15 * one["memory"][0]["kv_cache"]


@pytest.mark.parametrize(
    ("shape", "grows"), [("qwen3.6-35b-a3b-8-layers", True), ("llama-8b", False)], ids=["reads", "multiplies"]
)
def test_steps_have_the_size_that_is_estimated_to_be_best(
    shape: str, grows: bool, host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ("--shape", shape, "--host", host, "--input-len", "1500", "--output-len", "2")
    chosen = record(capsys, tmp_path, *common)
    given = {size: record(capsys, tmp_path, *common, "--chunked-prefill-size", str(size)) for size in (512, 1024, 2048)}
    best = min(each["ttft_s"] for each in given.values())
    size = next(size for size, each in given.items() if each["ttft_s"] <= 1.03 * best)
    assert (chosen["step_tokens"], size > 512) == (size, grows)
    assert chosen["memory"] == given[size]["memory"]
    assert [chosen[key] for key in ("ttft_s", "tpot_s")] == pytest.approx(
        [given[size][key] for key in ("ttft_s", "tpot_s")]
    )
    out = [run(capsys, *common, *more)[1] for more in ([], ["--chunked-prefill-size", str(size)])]
    note = f"prompts are computed in steps of at most {size} tokens, chosen from 512, 1024 and 2048: --chunked"
    assert note in out[0] and "chosen from" not in out[1]


def test_steps_are_not_longer_than_memory_allows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--shape", "qwen3.6-35b-a3b-8-layers", "--output-len", "2", "--host")
    sizes = [
        record(capsys, tmp_path, *common, write_host(tmp_path, 64), "--chunked-prefill-size", size)["memory"]
        for size in ("512", "1024")
    ]
    needed = [
        max(sum(node[key] for key in ("weights", "kv_cache", "states", "scratch")) for node in each) for each in sizes
    ]
    between = write_host(tmp_path, 64 * sum(needed) / 2 / sizes[0][0]["usable"])
    tight = record(capsys, tmp_path, *common, between)
    assert (tight["fits"], tight["step_tokens"]) == (True, 512)
    assert record(capsys, tmp_path, *common, write_host(tmp_path, 64))["step_tokens"] == 1024
    assert record(capsys, tmp_path, *common, write_host(tmp_path, 1))["step_tokens"] == 512


def test_narrower_weights_take_less_memory_and_time(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ("--shape", "llama-8b", "--host", host)
    wide, narrow = record(capsys, tmp_path, *common), record(capsys, tmp_path, *common, "--quantization", "int8")
    assert narrow["memory"][0]["weights"] < 0.6 * wide["memory"][0]["weights"]
    assert narrow["tpot_s"] < wide["tpot_s"]


def test_what_embeds_has_no_head_and_generates_nothing(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ("--shape", "llama-8b", "--host", host, "--batch-size", "3")
    generates, embeds = (record(capsys, tmp_path, *common, *more) for more in ([], ["--task", "embed"]))
    operations = {cost["name"]: cost["calls"] for cost in embeds["prefill"]["costs"]}
    assert operations["pool"] == 2  # chunks of the prompt
    assert not operations.keys() & {"lm_head", "gather", "sample"}
    assert (embeds["decode"], embeds["tpot_s"], embeds["output_tokens_s"]) == (None, None, None)
    read = [sum(cost["nbytes"] for cost in made["prefill"]["costs"]) for made in (generates, embeds)]
    assert read[1] < read[0]
    shape = SHAPES["llama-8b"]
    weights = [sum(node["weights"] for node in made["memory"]) for made in (generates, embeds)]
    assert weights[0] - weights[1] >= 2 * shape.vocab * shape.hidden
    cache = [sum(node["kv_cache"] for node in made["memory"]) for made in (generates, embeds)]
    assert cache[1] < 0.6 * cache[0]  # prompts alone


def test_what_scores_has_a_row_of_logits_for_a_prompt_and_generates_nothing(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = record(capsys, tmp_path, "--shape", "llama-8b", "--host", host, "--task", "score", "--input-len", "100")
    operations = {cost["name"]: cost["calls"] for cost in made["prefill"]["costs"]}
    assert (operations["lm_head"], operations["sample"]) == (1, 1)
    assert made["decode"] is None


def test_a_checkpoint_that_has_no_head_can_be_planned_for(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = SHAPES["tiny"].config() | {"architectures": ["LlamaModel"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    status, out, errors = run(capsys, str(tmp_path), "--host", host, "--task", "embed")
    assert status == 0, errors
    assert "1 x 1024 tokens" in out
    assert "last prompt answered after" in out
    assert not {"TTFT", "TPOT", "decode,"} & set(out.split())


def test_the_states_of_a_hybrid_are_planned_and_read_and_written_in_each_step(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ("--shape", "qwen3.5-0.8b", "--host", host, "--tp", "1")
    one, four = (record(capsys, tmp_path, *common, "--batch-size", batch) for batch in ("1", "4"))
    each = 18 * 4 * (16 * 128 * 128 + 3 * (3 * 16 * 128))  # of 18 layers, the inputs of the convolution too
    assert one["memory"][0]["states"] == pytest.approx((1 + 2) * each, rel=2e-3)
    assert four["memory"][0]["states"] == pytest.approx((4 + 6) * each, rel=2e-3)
    matrices = 18 * 4 * 16 * 128 * 128
    for made, sequences in ((one, 1), (four, 4)):
        (cost,) = (cost for cost in made["decode"]["costs"] if cost["name"] == "gated_delta")
        assert cost["nbytes"] == pytest.approx(2 * sequences * matrices, rel=2e-3)
        assert cost["seconds"] > cost["nbytes"] / 100e9
    none = record(capsys, tmp_path, *common, "--state-cache-gib", "0")
    assert none["memory"][0]["states"] == pytest.approx(each, rel=2e-3)
    status, out, _ = run(capsys, *common)
    assert status == 0
    assert " states " in out


def test_what_does_not_fit_is_told_with_what_would_mend_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = write_host(tmp_path, 8)
    arguments = ("--shape", "llama-8b", "--host", small)
    status, out, _ = run(capsys, *arguments)
    assert status == 1
    assert "The model does not fit" in out
    made = record(capsys, tmp_path, *arguments)
    assert not all(node["weights"] + node["kv_cache"] + node["scratch"] <= node["usable"] for node in made["memory"])
    assert "--quantization int8" in made["remedies"]
    mended = record(capsys, tmp_path, *arguments, "--quantization", "int8")
    assert mended["fits"]
    assert mended["remedies"] == []


def test_ranks_may_cut_the_groups_of_a_format_otherwise(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """512 columns: seven cores have 293 and 219 of them, in groups of 128 that one rank has to cut."""
    (tmp_path / "config.json").write_text(json.dumps(SHAPES["tiny"].config() | {"intermediate_size": 512}))
    made = record(capsys, tmp_path, str(tmp_path), "--host", host, "--quantization", "fp8", "--input-len", "64")
    assert all(cost["seconds"] >= cost["bound_s"] for cost in made["prefill"]["costs"])


def test_a_context_that_the_model_has_not_is_refused(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, errors = run(capsys, "--shape", "tiny", "--host", host, "--input-len", "2048")
    assert status == 2
    assert "tokens exceed the model's context of 2048: lower --input-len" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "tiny", "--host", "6980"], "--host 6980: unknown host; expected this, 2x6972p"),
        (["--shape", "huge", "--host", "6980p"], "--shape huge is not a known shape: use one of tiny"),
        (["--host", "6980p"], "name either a MODEL or a shape"),
        (["--shape", "tiny", "--host", "6980p", "--tp", "0"], "tp must be between"),
        (["--shape", "tiny", "--host", "6980p", "--quantization", "int3"], "quantization must be"),
        (["--shape", "tiny", "--host", "6980p", "--efficiencies", "nowhere"], "cannot read nowhere"),
        (["--shape", "tiny", "--host", "6980p", "--task", "rank"], "task must be"),
        (
            ["--shape", "tiny", "--host", "6980p", "--task", "embed", "--output-len", "8"],
            "--output-len needs a task that generates tokens, and --task embed does not",
        ),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, errors = run(capsys, *arguments)
    assert status == 2
    assert message in errors
    assert errors.count("\n") == 1


def test_an_explanation_shows_what_threads_and_ranks_wait_for(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SHAPES["llama-8b"].config()))
    status, out, _ = run(capsys, str(folder), "--host", host, "--input-len", "100", "--explain")
    assert status == 0
    decode = out.rindex("decode, rank")
    assert out.index("MB from other ranks") < decode
    row = next(line.split() for line in out[decode:].splitlines() if line.split()[:1] == ["add_all_reduce"])
    assert row[4:6] == ["65", "65"]  # barriers and meetings: after the embedding, and twice in 32 layers


def test_skewed_routing_makes_an_estimate_of_experts_longer(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_235B | {"num_hidden_layers": 2}))
    common = (str(tmp_path), "--host", host, "--input-len", "512")
    even, skewed = (record(capsys, tmp_path, *common, "--skew", skew)["prefill"] for skew in ("0", "2"))
    seconds = [
        sum(cost["seconds"] for cost in made["costs"] if cost["name"].startswith("moe_gate")) for made in (even, skewed)
    ]
    assert 0 < seconds[0] != seconds[1]


def test_routing_is_skewed_only_within_limits(host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, errors = run(capsys, str(tmp_path), "--host", host, "--skew", "5")
    assert status == 2
    assert "--skew" in errors


def test_a_disk_tier_has_pages_by_its_size_and_memory_of_the_front_end(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = ("--shape", "llama-8b", "--host", host, "--tp", "1")
    plain, disk = record(capsys, tmp_path, *shape), record(capsys, tmp_path, *shape, "--kv-disk-gib", "64")
    tier = disk["kv_disk"]
    # 32 layers, keys and values of 8 heads of 128 in bf16; the header of the record takes a block.
    assert tier["page_bytes"] == 32 * 2 * 8 * 128 * 2 * 32 + 4096
    assert tier["pages"] == pytest.approx((64 << 30) / tier["page_bytes"], rel=0.01)
    assert (tier["tokens"], tier["anchors"]) == (32 * tier["pages"], 0)
    assert tier["front_end_bytes"] == 300 * tier["pages"]
    needed = [sum(node["scratch"] for node in made["memory"]) for made in (plain, disk)]
    assert needed[1] - needed[0] == tier["front_end_bytes"]
    assert tier["pays_from_bytes_per_s"] == pytest.approx(32 * tier["page_bytes"] / disk["prefill"]["seconds"])
    assert "kv_disk" not in plain
    _, out, _ = run(capsys, *shape, "--kv-disk-gib", "64")
    assert "Disk tier" in out
    assert "sooner than computed" in out


@pytest.mark.parametrize("shape", ["qwen3.5-0.8b", "gemma4-e2b"])
def test_anchors_take_at_most_half_of_a_disk_tier(
    shape: str, host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--shape", shape, "--host", host, "--tp", "2", "--context-length", "32768")
    tier = record(capsys, tmp_path, *options, "--kv-disk-gib", "8")["kv_disk"]
    anchors, pages = (tier[f"{kind}s"] * tier[f"{kind}_bytes"] for kind in ("anchor", "page"))
    assert 0 < anchors <= 4 << 30
    assert 7.8 * (1 << 30) < anchors + pages <= 8 << 30
    assert tier["front_end_bytes"] == 300 * (tier["pages"] + tier["anchors"])
