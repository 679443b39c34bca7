"""`numaserve plan` of a model in pipeline stages on several hosts."""

from pathlib import Path
from typing import Any

import pytest
from numaserve.workers.bench.shapes import SHAPES

from tests.integration.cli.test_plan_command import record, run, write_host

SHAPE = SHAPES["llama-8b"]
LAYER = 2 * SHAPE.hidden * (SHAPE.heads + SHAPE.kv_heads) * SHAPE.head_dim + 3 * SHAPE.hidden * SHAPE.intermediate
# No time on the link but for the encryption.
NO_LINK = ("--link-gbit-s", "1e6", "--link-us", "0")
STEP_S = 150e-6  # what each step takes besides its operations


def hosts(folder: Path, memory: float, count: int) -> list[str]:
    return ["--host", write_host(folder, memory)] * count


def of_nodes(made: dict[str, Any], key: str) -> int:
    return sum(node[key] for node in made["memory"])


def test_hosts_divide_what_one_host_reads_and_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--shape", "llama-8b", "--tp", "1", "--input-len", "500", "--output-len", "2")
    one = record(capsys, tmp_path, *common, *hosts(tmp_path, 64, 1))
    two = record(capsys, tmp_path, *common, *hosts(tmp_path, 64, 2), *NO_LINK)
    first, last = two["hosts"]
    assert [first["layers"], last["layers"]] == [16, 16]
    cache = 2 * 2 * 16 * SHAPE.kv_heads * SHAPE.head_dim * (500 + 2)
    head = SHAPE.vocab * SHAPE.hidden
    assert first["decode"]["nbytes"] == 2 * 16 * LAYER + cache
    assert last["decode"]["nbytes"] == 2 * (16 * LAYER + head) + cache
    for key in ("weights", "kv_cache"):
        assert of_nodes(first, key) + of_nodes(last, key) == of_nodes(one, key), key
    # One stream alone is no faster than on one host: a token takes as long and a second step.
    for key in ("ttft_s", "tpot_s"):
        assert two[key] == pytest.approx(one[key] + STEP_S, rel=0.01), key
    assert two["tpot_s"] == two["pass_s"] > one["tpot_s"]


def test_every_rank_sends_the_residual_stream_in_fp32(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--shape", "llama-8b", *hosts(tmp_path, 64, 2), "--batch-size", "6")
    made = record(capsys, tmp_path, *common, "--link-gbit-s", "10", "--link-us", "200")
    link = made["link"]
    assert (made["step_tokens"], made["cohorts"]) == (512, 2)
    assert link["token_bytes"] == 2 * 4 * SHAPE.hidden  # of two ranks
    assert (link["chunk_bytes"], link["decode_bytes"]) == (512 * link["token_bytes"], 3 * link["token_bytes"])
    # Parts of 1 MiB are encrypted and decrypted while the link, which is slower, sends others.
    for name, part in (("chunk", 1 << 20), ("decode", link["decode_bytes"] / 2)):
        sent = link[f"{name}_bytes"] * 8 / 10e9
        assert link[f"{name}_s"] == pytest.approx(200e-6 + sent + 2 * part / 1.1e9)
    status, out, _ = run(capsys, *common)
    assert status == 0
    for text in ("llama-8b on 2 hosts", "Memory of host 1 (two nodes)", "decode on host 1, rank", "100 Gbit/s, 50 µs"):
        assert text in out
    assert "more hosts raise the tokens/s of many sequences, and never lower the TPOT of one" in out


def test_cohorts_keep_all_hosts_busy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--shape", "llama-8b", "--input-len", "64", "--output-len", "2")
    eight, sixteen = (
        record(capsys, tmp_path, *common, *hosts(tmp_path, 64, count), "--batch-size", batch)
        for count, batch in ((1, "8"), (2, "16"))
    )
    slowest = max(host["decode"]["seconds"] for host in sixteen["hosts"])
    assert sixteen["tpot_s"] == pytest.approx(2 * slowest)
    assert sixteen["pass_s"] < sixteen["tpot_s"]
    assert sixteen["output_tokens_s"] == pytest.approx(16 / sixteen["tpot_s"])
    assert 1.5 < sixteen["output_tokens_s"] / eight["output_tokens_s"] < 2
    _, out, _ = run(capsys, *common, *hosts(tmp_path, 64, 2))
    assert "1 of 2 hosts works at a time while sequences generate: --batch-size of at least 2" in out
    # A link that is slower than the hosts bounds prompts and tokens.
    slow = record(capsys, tmp_path, *common, *hosts(tmp_path, 64, 2), "--batch-size", "16", "--link-gbit-s", "0.01")
    sent = slow["link"]["token_bytes"] * 8 / 0.01e9
    assert slow["tpot_s"] == pytest.approx(16 * sent)
    assert slow["prefill_tokens_s"] == pytest.approx(1 / sent)


def test_a_model_that_fits_no_host_may_fit_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for memory, count, fits in ((8, 1, False), (8, 2, True), (2, 2, False)):
        made = record(capsys, tmp_path, "--shape", "llama-8b", *hosts(tmp_path, memory, count))
        assert made["fits"] == fits
    assert [host["fits"] for host in made["hosts"]] == [False, False]
    status, out, _ = run(capsys, "--shape", "llama-8b", *hosts(tmp_path, 2, 2))
    assert status == 1
    assert "The part of host 1 (two nodes) does not fit. Each of these changes would make it fit" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tiny", "--host", "6980p", "--host", "6980"], "--host 6980: unknown host; expected this, 2x6972p"),
        (["tiny", *["--host", "6980p"] * 3], "3 pipeline stages exceed the model's 2 layers: use at most 2 stages"),
        (["tiny", *["--host", "6980p"] * 65], "pp must be between 1 and 64"),
        (["gemma4-e2b", *["--host", "6980p"] * 2], "layers of this model share keys or have inputs of their own"),
        (["tiny", *["--host", "6980p"] * 2, "--task", "embed"], "pipeline stages cannot be combined with --task embed"),
        (["tiny", *["--host", "6980p"] * 2, "--kv-disk-gib", "1"], "--kv-disk-gib needs one host: name one --host"),
        (
            ["tiny", "--host", "6980p", "--host", "epyc-9755"],
            "the hosts have the instruction sets amx, avx512, and all",
        ),
        (
            ["tiny", "--host", "6980p", "--host", "8592+"],
            "would have 3, 1 ranks, one for each node, and all stages need",
        ),
        (["tiny", "--host", "6980p", "--link-us", "1"], "--link-us needs several hosts: repeat --host"),
    ],
    ids=["unknown", "layers", "many", "shared keys", "embed", "disk", "isa", "ranks", "link"],
)
def test_hosts_that_a_model_cannot_have_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, errors = run(capsys, "--shape", *arguments)
    assert status == 2
    assert message in errors
    assert errors.count("\n") == 1
