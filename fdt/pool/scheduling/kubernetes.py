"""Writes Kubernetes manifests of a pool's hosts, for `kubectl apply -f`. Sends no request itself.

The manifests are JSON, which kubectl accepts as YAML, so writing them needs no library.
"""

import json
from typing import Any

from fdt.errors import UsageError
from fdt.pool.scheduling.request import CA_FILE, TOKEN_FILE, File, HostRequest, Rendering, named_arguments

_MANIFESTS = "hosts.json"
# Where containers mount the pool's files.
_FOLDER = "/etc/fdt"
_USER = 1000
# The settings of the cluster, with their defaults.
_DEFAULTS = {"image": "", "namespace": "default", "queue": "", "python": "python3"}


class Kubernetes:
    """Implements `fdt.pool.scheduling.request.Renderer`: hosts are pods of one indexed Job, as many as the pool may have.

    Arguments are NAME=VALUE: `image` of the containers (required), `namespace`, `queue` (of Kueue), `python` in the image.
    """

    def render(self, request: HostRequest) -> Rendering:
        """Returns a file with a Secret, a Service and a Job, and the command that applies it."""
        given = _parsed(request.config.arguments)
        items = [_secret(request), _service(request), _job(request, given)]
        for item in items:
            item["metadata"]["namespace"] = given["namespace"]
        manifests = {"apiVersion": "v1", "kind": "List", "items": items}
        # Mode 0600, since the file contains the token.
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
    """Returns a Service that gives each pod a name that the others resolve."""
    spec = {"clusterIP": "None", "selector": _metadata(request)["labels"], "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(request), "spec": spec}


def _job(request: HostRequest, given: dict[str, str]) -> dict[str, Any]:
    metadata, config = _metadata(request), request.config
    if given["queue"]:
        # Kueue delays the Job until its queue has room for all pods.
        metadata["labels"]["kueue.x-k8s.io/queue-name"] = given["queue"]
    spec = {
        "completionMode": "Indexed",
        "completions": config.most,
        "parallelism": config.most,
        # Kubernetes starts a lost host again; after this many failures of all hosts together, it gives up.
        "backoffLimit": 6 * config.most,
        "template": {"metadata": {"labels": _metadata(request)["labels"]}, "spec": _pod(request, given)},
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _pod(request: HostRequest, given: dict[str, str]) -> dict[str, Any]:
    container = {
        "name": "host",
        "image": given["image"],
        # Kubernetes replaces the variable by the pod's name.
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
            # Workers of one host exchange tensors in it; the default of 64 MiB is too small.
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    return {
        "restartPolicy": "Never",
        "subdomain": request.pool,
        "automountServiceAccountToken": False,
        # Time for a host to leave the pool, and for its jobs to take a snapshot, before it is killed.
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
