"""The alerts and the dashboard over Prometheus itself, which scrapes a real server at work."""

import itertools
import json
import math
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch
import transformers as hf
import yaml

from tests.support import vision
from tests.support.chat_model import HYBRID, SLIDING, write_model
from tests.support.image_files import image_part, in_file, pattern
from tests.support.lora import random_adapter
from tests.support.real_server import PATIENCE_S, RealServer

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SCRAPE_S = 1
RATE = "15s"  # in place of Grafana's $__rate_interval, which it makes of the scrapes' interval
DASHBOARD = json.loads((DEPLOY / "grafana" / "numaserve.json").read_text())
TARGETS = [
    pytest.param(target["expr"], id=f"{panel['title']}, {target['refId']}")
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", ())
]
ADAPTER = "sql"
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def command(name: str) -> str:
    found = shutil.which(name)
    assert found, "install Prometheus (on Debian: apt-get install prometheus)"
    return found


def promtool(folder: Path, *arguments: str) -> None:
    done = subprocess.run([command("promtool"), *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """One that scrapes `targets`, with the rules and the scrape of deploy/, more often."""

    def __init__(self, targets: Sequence[str], folder: Path) -> None:
        settings = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
        settings["global"] = {"evaluation_interval": f"{SCRAPE_S}s"}
        (scrape,) = settings["scrape_configs"]
        scrape |= {"scrape_interval": f"{SCRAPE_S}s", "static_configs": [{"targets": list(targets)}]}
        shutil.copy(DEPLOY / "alerts.yml", folder)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
        self._log = (folder / "log").open("w")
        options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        self._process = subprocess.Popen(
            [command("prometheus"), *options, "--web.listen-address=127.0.0.1:0"], stderr=self._log
        )
        try:
            self.url = f"http://127.0.0.1:{self._port()}"
        except BaseException:
            self.close()
            raise

    def _port(self) -> int:
        """Which of the free ones it has taken."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            for connection in psutil.Process(self._process.pid).net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    return int(connection.laddr.port)
            time.sleep(0.05)
        raise TimeoutError("Prometheus does not listen")

    def ask(self, path: str, **parameters: str) -> Any:
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=PATIENCE_S)
        body = answer.json()
        assert body["status"] == "success", body
        return body["data"]

    def values(self, query: str) -> list[float]:
        return [float(each["value"][1]) for each in self.ask("query", query=query)["result"]]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        self._log.close()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One that has scraped three servers for a while. Two of them were at work meanwhile."""
    folder = tmp_path_factory.mktemp("prometheus")
    # Each has metrics that others lack: of snapshots, the disk tier and adapters, of window pages and of images.
    hybrid, sliding = (str(write_model(tmp_path_factory.mktemp("models"), family=each)) for each in (HYBRID, SLIDING))
    torch.manual_seed(0)
    seeing = hf.AutoModelForImageTextToText.from_config(vision.CASES["smolvlm"]()).to(torch.bfloat16)
    images = str(vision.save_served(seeing, tmp_path_factory.mktemp("models")))
    adapted = hf.AutoModelForCausalLM.from_config(hf.AutoConfig.from_pretrained(hybrid))
    adapter = random_adapter(adapted, rank=2).save(folder / ADAPTER)
    options = ("--threads-per-worker", "1", "--kv-cache-gib", "0.125")
    more = ("--kv-disk-path", str(folder / "kv-disk"), "--lora", f"{ADAPTER}={adapter}")
    with (
        RealServer("--tp", "2", *options, *more, model=hybrid) as server,
        RealServer("--tp", "1", *options, model=images) as shown,
        RealServer("--tp", "1", *options, model=sliding) as idle,
    ):
        prometheus = Prometheus([each.url.removeprefix("http://") for each in (server, shown, idle)], folder)
        try:
            _work(server, shown, prometheus)
            yield prometheus
        finally:
            prometheus.close()


def _work(server: RealServer, shown: RealServer, prometheus: Prometheus) -> None:
    """Send requests, and images to the server `shown`, until there are scrapes before, between and after some."""
    while prometheus.values("numaserve_generation_tokens_total") != [0.0] * 3:
        time.sleep(SCRAPE_S / 4)
    story = "Once upon a time there was a city by the sea. " * 8
    constrained = {"json_schema": json.dumps(NUMBER), "ignore_eos": False}
    salts = itertools.count()  # each image is new
    with ThreadPoolExecutor(4) as clients:
        while prometheus.values("min(count_over_time(numaserve_generation_tokens_total[1m]))") < [10.0]:
            sent = [clients.submit(server.complete, f"{story}{who * 30}", 24) for who in "abc"]
            sent.append(clients.submit(server.complete, "A number as JSON: ", 16, **constrained))
            sent.append(clients.submit(server.complete, story, 8, model=ADAPTER))
            assert _ask_about(shown, in_file(pattern(70, 90, salt=next(salts)))).status_code == 200
            assert _ask_about(shown, b"no image").status_code == 400
            assert {each.result().status_code for each in sent} == {200}


def _ask_about(server: RealServer, file: bytes) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": [image_part(file)]}], "max_tokens": 1}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=PATIENCE_S)


def test_the_alerts_and_the_scrape_are_valid() -> None:
    promtool(DEPLOY, "check", "rules", "alerts.yml")
    promtool(DEPLOY, "check", "config", "prometheus.yml")


def test_each_alert_is_of_the_server_that_has_the_trouble() -> None:
    promtool(Path(__file__).parent, "test", "rules", "alerts_test.yml")


def test_a_rule_that_is_wrong_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    (tmp_path / "tests" / "monitoring").mkdir(parents=True)
    rules = (DEPLOY / "alerts.yml").read_text()
    (tmp_path / "deploy" / "alerts.yml").write_text(rules.replace("> 0.01", "> 0.5"))
    test = shutil.copy(Path(__file__).with_name("alerts_test.yml"), tmp_path / "tests" / "monitoring")
    with pytest.raises(AssertionError, match="NumaserveErrors"):
        promtool(Path(test).parent, "test", "rules", "alerts_test.yml")


@pytest.mark.parametrize("expression", TARGETS)
def test_a_panel_shows_what_the_server_tells(prometheus: Prometheus, expression: str) -> None:
    query = expression.replace("$__rate_interval", RATE).replace("$instance", ".*").replace("$model", ".*")
    assert "$" not in query
    values = prometheus.values(query)
    assert any(not math.isnan(value) for value in values), query


def test_the_dashboard_s_variables_have_values(prometheus: Prometheus) -> None:
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = variable["query"]["query"].removeprefix("label_values(").rstrip(")").split(", ")
            assert all(each["metric"][label] for each in prometheus.ask("query", query=metric)["result"])


def test_the_rules_are_evaluated_and_a_server_at_work_is_no_reason_for_alarm(prometheus: Prometheus) -> None:
    (group,) = prometheus.ask("rules")["groups"]
    assert {rule["health"] for rule in group["rules"]} == {"ok"}
    assert prometheus.ask("alerts")["alerts"] == []
