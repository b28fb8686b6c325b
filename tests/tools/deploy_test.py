#!/usr/bin/env python3
# deploy_test.py HELLO DIRECTORY: ranks with the variables and names of hosts that the files of share/deploy, Kubernetes
# and its training operator give them meet, and add up their numbers. Exits with 77 where that cannot be tried.
import contextlib
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

try:
    import yaml
except ImportError:
    print("skipped: there is no module yaml (Debian: python3-yaml)")
    sys.exit(77)

LIMIT = 180  # seconds for all ranks of a job
DOMAIN = "cluster.local"
UNKNOWN = "cannot be resolved"  # logged by rank 0
hello, directory = sys.argv[1:]


def skip_if_hosts_cannot_be_named():
    try:
        probe = subprocess.run(["unshare", "--mount", "mount", "--bind", "/etc/hosts", "/etc/hosts"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        if probe.returncode == 0:
            return
    except FileNotFoundError:
        pass
    print("skipped: names of hosts cannot be added here (unshare --mount, as root with CAP_SYS_ADMIN)")
    sys.exit(77)


# Below the ports that the system gives to connections: another test's could get the port before rank 0 listens.
def free_port():
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return str(port)


def documents(name):
    with open(os.path.join(directory, name)) as file:
        return {document["kind"]: document for document in yaml.safe_load_all(file)}


# $(NAME) is the value of a variable that is defined before it.
def variables(container, fields):
    result = {}
    for entry in container.get("env", []):
        value = entry.get("value")
        if value is None:
            value = fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        result[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda found: result.get(found[1], found[0]), value)
    return result


# The pods of an indexed job: Kubernetes sets HOSTNAME and JOB_COMPLETION_INDEX. Returns their variables, the names that
# pod 0 has in its /etc/hosts, and those of pod 0 that the DNS knows.
def indexed_job():
    files = documents("kubernetes-job.yaml")
    job, service = files["Job"], files["Service"]
    name, spec = job["metadata"]["name"], job["spec"]
    assert spec["completionMode"] == "Indexed" and spec["parallelism"] == spec["completions"]
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name}
    pods = []
    for index in range(spec["completions"]):
        path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        fields = {path: str(index), "metadata.namespace": "team"}
        own = variables(spec["template"]["spec"]["containers"][0], fields)
        assert own["WORLD_SIZE"] == str(spec["completions"])
        assert own["MASTER_PORT"] == str(service["spec"]["ports"][0]["port"])
        pods.append({"HOSTNAME": f"{name}-{index}", "JOB_COMPLETION_INDEX": str(index)} | own)
    full = f"{name}-0.{service['metadata']['name']}.team.svc.{DOMAIN}"
    return pods, f"{full} {name}-0", full


# The pods of a PyTorchJob: the operator sets the variables.
def pytorch_job():
    job = documents("pytorchjob.yaml")["PyTorchJob"]
    name, replicas = job["metadata"]["name"], job["spec"]["pytorchReplicaSpecs"]
    size = replicas["Master"]["replicas"] + replicas["Worker"]["replicas"]
    pods = []
    for rank in range(size):
        role = "master-0" if rank == 0 else f"worker-{rank - 1}"
        container = replicas["Master" if rank == 0 else "Worker"]["template"]["spec"]["containers"][0]
        assert container["name"] == "pytorch"
        pods.append({"HOSTNAME": f"{name}-{role}", "RANK": str(rank), "WORLD_SIZE": str(size),
                     "MASTER_ADDR": f"{name}-master-0"} | variables(container, {}))
    return pods, f"{name}-master-0", f"{name}-master-0"


# A rank as a process with names of hosts of its own, and what it has written.
class Rank:
    def __init__(self, variables_of_pod, names, place):
        self.hosts = os.path.join(place, variables_of_pod["HOSTNAME"])
        self.output = ""
        with open(self.hosts, "w") as file:
            file.write("127.0.0.1 localhost\n::1 localhost ip6-localhost\n")
        self.add(names)
        script = f'mount --bind {self.hosts} /etc/hosts && mount --bind /dev/null /etc/resolv.conf && exec "$@"'
        base = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME") or "SAN" in name}
        self.process = subprocess.Popen(["unshare", "--mount", "sh", "-c", script, "-", hello],
                                        env=base | variables_of_pod, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def add(self, names):
        if names:
            with open(self.hosts, "a") as file:
                file.write(f"127.0.0.1 {names}\n")

    def read(self):
        for line in self.process.stdout:
            self.output += line

    def end(self, deadline):
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.output += f"(rank not done within {LIMIT} s)\n"
        self.process.kill()
        self.process.wait()
        self.reader.join()


# `is_late`: the name of pod 0 becomes known after rank 0 has looked it up.
def run(what, pods, own_names, dns_names, is_late=False):
    port = free_port()  # that of the file may be in use on this machine
    deadline = time.monotonic() + LIMIT
    with tempfile.TemporaryDirectory() as place:
        ranks = []
        try:
            for index, pod in enumerate(pods):
                names = dns_names if index else own_names
                ranks.append(Rank(pod | {"MASTER_PORT": port}, "" if is_late else names, place))
            if is_late:
                while UNKNOWN not in ranks[0].output and time.monotonic() < deadline:
                    time.sleep(0.01)
                for rank in ranks:
                    rank.add(dns_names)
        finally:
            for rank in ranks:
                rank.end(deadline)
    output = "".join(rank.output for rank in ranks)
    size = len(pods)
    total = f"add up to {size * (size - 1) // 2}"
    codes = [rank.process.returncode for rank in ranks]
    is_known = is_late or UNKNOWN not in output
    if any(codes) or output.count(f" of {size} over ") != size or total not in output or not is_known:
        sys.exit(f"{what}: exit codes {codes}, output:\n{output}")
    print(f"passed: {what}")


skip_if_hosts_cannot_be_named()
run("the indexed job", *indexed_job())
run("the indexed job, before the DNS knows pod 0", *indexed_job(), is_late=True)
run("the PyTorchJob", *pytorch_job())
