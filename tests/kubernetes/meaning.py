"""What no schema says of the manifests: that their parts fit each other, and that pods get cores of their own."""

from typing import Any

import yaml
from numaserve.server.config.serve import ServeConfig
from numaserve.server.metrics.metrics import Metrics

from tests.documentation.parts import ROOT

Document = dict[str, Any]
KERNEL_KILLS_AFTER_S = 10  # what the workers may need to end, beside draining
SPARE_GIB = 2  # of the cache's volume: what the server leaves free, and the file system's own
_UNITS = {"Mi": 1 / 1024, "Gi": 1.0, "Ti": 1024.0}


def check_meaning(documents: list[Document]) -> None:
    """Raise `AssertionError` where the rendered `documents` of one folder do not fit together."""
    by_kind: dict[str, Document] = {document["kind"]: document for document in documents}
    assert len(by_kind) == len(documents), "two of a kind"
    deployment = by_kind["Deployment"]
    template = deployment["spec"]["template"]
    (container,) = template["spec"]["containers"]
    config = yaml.safe_load(by_kind["ConfigMap"]["data"]["numaserve.yaml"])
    check_pod(template["spec"], container, config)
    check_storage(template["spec"]["volumes"], container["resources"]["limits"], cache_limits(by_kind["ConfigMap"]))
    volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
    assert volumes["config"]["configMap"]["name"] == by_kind["ConfigMap"]["metadata"]["name"]
    check_ports(by_kind, container)
    for labels in selectors(by_kind):
        assert labels.items() <= template["metadata"]["labels"].items(), f"{labels} selects no pod"
    check_autoscaling(by_kind)


def check_pod(pod: Document, container: Document, config: Document) -> None:
    """Cores of its own, no privileges, and time to end."""
    resources = container["resources"]
    assert resources["requests"] == resources["limits"], "the pod is not of the guaranteed class"
    assert str(resources["limits"]["cpu"]).isdigit(), "only whole cores are given to a pod alone"
    security = pod["securityContext"] | container["securityContext"]
    assert security["runAsNonRoot"] and security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"] and "privileged" not in security
    assert security["capabilities"] == {"drop": ["ALL"]} and security["seccompProfile"] == {"type": "RuntimeDefault"}
    image = (ROOT / "deploy" / "container" / "Containerfile").read_text()
    assert f"USER {security['runAsUser']}:{security['runAsGroup']}\n" in image
    wait = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] >= wait + config["drain-seconds"] + KERNEL_KILLS_AFTER_S


def check_storage(volumes: list[Document], limits: Document, caches: list[float]) -> None:
    """What is written cannot have the pod evicted, and packed weights, `caches` GiB of them, fit their volume."""
    by_name = {volume["name"]: volume for volume in volumes}
    emptied = [volume["emptyDir"] for volume in volumes if "emptyDir" in volume]
    assert all("sizeLimit" in each for each in emptied), "an emptyDir without a limit fills up to the pod's eviction"
    assert sum(gib(each["sizeLimit"]) for each in emptied) < gib(limits["ephemeral-storage"])
    claim = by_name["cache"]["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert max(caches) + SPARE_GIB <= gib(claim["resources"]["requests"]["storage"])


def cache_limits(config_map: Document) -> list[float]:
    """The `weights-cache-gib` of each server, the default where none is told."""
    files = {name: yaml.safe_load(text) for name, text in config_map["data"].items()}
    servers = [*files["models.yaml"]["models"].values()] if "models.yaml" in files else [files["numaserve.yaml"]]
    default = ServeConfig.model_fields["weights_cache_gib"].default
    return [float(server.get("weights-cache-gib", default)) for server in servers]


def gib(quantity: str) -> float:
    """A quantity of Kubernetes such as ``64Mi``, in GiB."""
    return float(quantity[:-2]) * _UNITS[quantity[-2:]]


def check_ports(by_kind: dict[str, Document], container: Document) -> None:
    """Whoever names a port means one that there is."""
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    (port,) = by_kind["Service"]["spec"]["ports"]
    assert port["targetPort"] in ports
    if monitor := by_kind.get("ServiceMonitor"):
        assert [each["port"] for each in monitor["spec"]["endpoints"]] == [port["name"]]
    if pool := by_kind.get("InferencePool"):
        assert [each["number"] for each in pool["spec"]["targetPorts"]] == [ports["http"]]
        (rule,) = by_kind["HTTPRoute"]["spec"]["rules"]
        assert [each["name"] for each in rule["backendRefs"]] == [pool["metadata"]["name"]]
    if policy := by_kind.get("NetworkPolicy"):
        assert {each["port"] for rule in policy["spec"]["ingress"] for each in rule["ports"]} == ports.keys()


def selectors(by_kind: dict[str, Document]) -> list[dict[str, str]]:
    """What selects the pods, or the service, which has the same labels."""
    spec = {kind: document["spec"] for kind, document in by_kind.items() if "spec" in document}
    found = [spec["Service"]["selector"]]
    found += [
        spec[kind]["selector"]["matchLabels"]
        for kind in ("Deployment", "PodDisruptionBudget", "ServiceMonitor", "InferencePool")
        if kind in spec
    ]
    if "NetworkPolicy" in spec:
        found.append(spec["NetworkPolicy"]["podSelector"]["matchLabels"])
    return found


def check_autoscaling(by_kind: dict[str, Document]) -> None:
    """The autoscaler's metrics are made by the adapter's rules, of metrics that the server has."""
    scaler = by_kind.get("HorizontalPodAutoscaler")
    if scaler is None:
        return
    rules = yaml.safe_load((ROOT / "deploy/kubernetes/components/autoscaling/adapter-rules.yaml").read_text())["rules"]
    families = {metric.name for metric in Metrics("m").registry.collect()}
    series = [rule["seriesQuery"].partition("{")[0] for rule in rules["custom"]]
    assert set(series) <= families
    made = {rule.get("name", {}).get("as", name) for rule, name in zip(rules["custom"], series, strict=True)}
    assert {metric["pods"]["metric"]["name"] for metric in scaler["spec"]["metrics"]} == made
    assert scaler["spec"]["scaleTargetRef"]["name"] == by_kind["Deployment"]["metadata"]["name"]
