"""Kubernetes: manifests of a pool's hosts, to be handed in with `kubectl apply -f`. Nothing is asked for from here.

The manifests are JSON, which is YAML: kubectl takes it, and no library is needed to write it.
"""

import json
from typing import Any

from fdt.errors import UsageError
from fdt.scheduling.request import CA_FILE, TOKEN_FILE, File, HostRequest, Rendering, named_arguments

_MANIFESTS = "hosts.json"
# Where containers see the pool's files.
_FOLDER = "/etc/fdt"
_USER = 1000
# What may be said of the cluster, and what it is without.
_DEFAULTS = {"image": "", "namespace": "default", "queue": "", "python": "python3"}


class Kubernetes:
    """See `fdt.scheduling.request.Renderer`: the hosts are the pods of one indexed Job, as many as there may be at most.

    Arguments are NAME=VALUE: `image` of the containers (needed), `namespace`, `queue` (of Kueue), `python` in the image.
    """

    def render(self, request: HostRequest) -> Rendering:
        """See `Renderer.render`."""
        given = _parsed(request.config.arguments)
        items = [_secret(request), _service(request), _job(request, given)]
        for item in items:
            item["metadata"]["namespace"] = given["namespace"]
        manifests = {"apiVersion": "v1", "kind": "List", "items": items}
        # It holds the token.
        file = File(_MANIFESTS, json.dumps(manifests, indent=2) + "\n", 0o600)
        return Rendering((file,), (("kubectl", "apply", "-f", str(request.folder / _MANIFESTS)),))


def _parsed(arguments: tuple[str, ...]) -> dict[str, str]:
    given = named_arguments(arguments, _DEFAULTS)
    if not given["image"]:
        raise UsageError("Kubernetes runs images: expected -- image=REGISTRY/NAME:TAG, one in which fdt is installed.")
    return given


def _metadata(request: HostRequest) -> dict[str, Any]:
    return {
        "name": request.pool,
        "labels": {"app.kubernetes.io/name": "fdt", "app.kubernetes.io/instance": request.pool},
    }


def _secret(request: HostRequest) -> dict[str, Any]:
    data = {TOKEN_FILE: request.token} | ({CA_FILE: request.tls_ca} if request.tls_ca else {})
    return {"apiVersion": "v1", "kind": "Secret", "metadata": _metadata(request), "type": "Opaque", "stringData": data}


def _service(request: HostRequest) -> dict[str, Any]:
    """Gives each pod a name that the others resolve."""
    spec = {"clusterIP": "None", "selector": _metadata(request)["labels"], "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(request), "spec": spec}


def _job(request: HostRequest, given: dict[str, str]) -> dict[str, Any]:
    metadata, config = _metadata(request), request.config
    if given["queue"]:
        # Kueue holds the Job back until its queue has room for all of it.
        metadata["labels"]["kueue.x-k8s.io/queue-name"] = given["queue"]
    spec = {
        "completionMode": "Indexed",
        "completions": config.most,
        "parallelism": config.most,
        # A host that is lost is placed anew; one that never joins does not try for ever.
        "backoffLimit": 6 * config.most,
        "template": {"metadata": {"labels": _metadata(request)["labels"]}, "spec": _pod(request, given)},
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _pod(request: HostRequest, given: dict[str, str]) -> dict[str, Any]:
    container = {
        "name": "host",
        "image": given["image"],
        # Kubernetes puts the pod's name in place of the variable.
        "command": request.command(given["python"], _FOLDER, "$(FDT_POD)"),
        "env": [{"name": "FDT_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "resources": _resources(request),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "files", "mountPath": _FOLDER, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            # Workers of one host exchange values in it; a container has 64 MiB otherwise.
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    return {
        "restartPolicy": "Never",
        "subdomain": request.pool,
        "automountServiceAccountToken": False,
        # A host says goodbye, and its jobs take a snapshot, before it is killed.
        "terminationGracePeriodSeconds": 60,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "files", "secret": {"secretName": request.pool, "defaultMode": 0o440}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }


def _resources(request: HostRequest) -> dict[str, Any]:
    wanted: dict[str, Any] = {"requests": {"cpu": str(request.config.slots)}}
    if request.config.gpus:
        wanted["limits"] = {"nvidia.com/gpu": str(request.config.gpus)}
    return wanted
