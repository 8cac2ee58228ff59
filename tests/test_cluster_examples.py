# SPDX-License-Identifier: Apache-2.0
"""The files of ``examples/cluster`` describe clusters that skest understands."""

import re
from pathlib import Path

import pytest

from skest.config.cluster import task_from_env

FOLDER = Path(__file__).parents[1] / "examples" / "cluster"


def manifest():
    yaml = pytest.importorskip("yaml")
    with (FOLDER / "kubernetes.yaml").open(encoding="utf-8") as file:
        return yaml.safe_load(file)["items"]


def environment(job, index):
    """What the container of a pod sees: Kubernetes fills in variables that came before."""
    (container,) = job["spec"]["template"]["spec"]["containers"]
    found = {"INDEX": str(index)}
    for variable in container["env"]:
        if "value" in variable:
            found[variable["name"]] = re.sub(
                r"\$\((\w+)\)", lambda m: found[m[1]], variable["value"]
            )
    return found


def test_pods_of_kubernetes_find_their_tasks():
    jobs = [item for item in manifest() if item["kind"] == "Job"]
    tasks = [
        task_from_env(environment(job, index))
        for job in jobs
        for index in range(job["spec"]["completions"])
    ]
    assert [(task.type, task.index) for task in tasks] == [
        ("chief", 0),
        *(("worker", i) for i in range(4)),
        *(("ps", i) for i in range(2)),
        ("evaluator", 0),
    ]
    (cluster,) = {task.cluster for task in tasks if task.cluster}
    for job in jobs:
        name, n = job["metadata"]["name"], job["spec"]["completions"]
        assert job["spec"]["parallelism"] == n  # all at once, they wait for each other
        expected = [f"{name}-{i}.skest:2222" for i in range(n)]
        assert name == "evaluator" or list(cluster.job_tasks(name)) == expected


def test_tasks_of_slurm_find_their_roles():
    script = (FOLDER / "slurm.sh").read_text(encoding="utf-8")
    exported = dict(re.findall(r"^export (\w+)=\"?([^\"\n]*)", script, re.M))
    n_tasks = re.search(r"--ntasks=(\d+)", script)[1]
    variables = exported | {
        "SLURM_NTASKS": n_tasks,
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_TASKS_PER_NODE": "4,3",
        "SLURM_JOB_NUM_NODES": "2",
    }
    tasks = [
        task_from_env(variables | {"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i % 4)})
        for i in range(int(n_tasks))
    ]
    assert [task.type for task in tasks] == ["ps"] * 2 + ["chief"] + ["worker"] * 4
    assert tasks[0].cluster.num_tasks("ps") == 2
