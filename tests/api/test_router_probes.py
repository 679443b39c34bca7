"""What routers ask a server before they send it requests."""

import pytest
from whole_answers import TestClient

from tests.support.api_fakes import CONTEXT, MODEL
from tests.support.byte_tokenizer import VOCAB


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
def test_the_model_is_told_under_both_names(client: TestClient, path: str) -> None:
    info = client.get(path).json()
    assert info["model_path"] == info["tokenizer_path"] == "/models/tiny"
    assert info["served_model_name"] == MODEL
    assert (info["max_model_len"], info["vocab_size"]) == (CONTEXT, VOCAB)
    assert (info["is_generation"], info["task"]) == (True, "generate")


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_the_server_names_its_model(client: TestClient, path: str) -> None:
    info = client.get(path).json()
    assert (info["model_path"], info["served_model_name"], info["tp"]) == ("/models/tiny", MODEL, 2)


def test_the_load_is_that_of_one_rank_and_of_all(client: TestClient) -> None:
    answer = client.get("/v1/loads").json()
    [load] = answer["loads"]
    assert (load["dp_rank"], answer["dp_rank_count"]) == (0, 1)
    assert (load["num_running_reqs"], load["num_waiting_reqs"], load["num_total_reqs"]) == (3, 1, 4)
    assert (load["num_used_tokens"], load["max_total_num_tokens"], load["token_usage"]) == (64, 256, 0.25)
    assert answer["aggregate"] == {
        "total_running_reqs": 3,
        "total_waiting_reqs": 1,
        "total_reqs": 4,
        "total_used_tokens": 64,
        "avg_token_usage": 0.25,
    }


def test_the_load_is_told_under_its_older_name(client: TestClient) -> None:
    load = {"dp_rank": 0, "num_reqs": 4, "num_waiting_reqs": 1, "num_tokens": 64}
    assert client.get("/get_load").json() == [load]
