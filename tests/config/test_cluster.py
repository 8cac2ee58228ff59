# SPDX-License-Identifier: Apache-2.0

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skest.config.ranks import expand_nodes, hosts_of_tasks
from skest.distributed import ClusterSpec, TaskConfig, task_from_env

JOBS = {"ps": ["p0:5", "p1:6"], "chief": ["c0:1"], "worker": ["w0:2", "w1:3"]}
CLUSTER = ClusterSpec(JOBS)


def from_json(config, variable="SKEST_CONFIG"):
    text = config if isinstance(config, str) else json.dumps(config)
    return task_from_env({variable: text})


# ClusterSpec


def test_a_cluster():
    assert CLUSTER.jobs == ["chief", "worker", "ps"]
    assert CLUSTER.as_dict() == JOBS
    assert CLUSTER.num_tasks("worker") == 2
    assert CLUSTER.num_tasks("helper") == 0
    assert CLUSTER.job_tasks("ps") == ["p0:5", "p1:6"]
    assert CLUSTER.task_address("worker", 1) == "w1:3"
    assert CLUSTER
    assert not ClusterSpec()
    assert repr(ClusterSpec()) == "ClusterSpec()"
    assert eval(repr(CLUSTER)) == CLUSTER


def test_addresses():
    for address in [
        "h:1",
        "10.0.0.1:65535",
        "[::1]:2222",
        "[fe80::1%eth0]:1",
        "a-b.c_d:0",
    ]:
        assert ClusterSpec({"chief": [address]}).task_address("chief", 0) == address


def test_wrong_clusters_are_refused():
    for jobs, error, message in [
        ([], TypeError, "must be a mapping of jobs to lists of addresses.*got list"),
        ({"chief": "c0:1"}, TypeError, "'chief' of a cluster must be a list .*'c0:1'"),
        ({"chief": [1]}, TypeError, "address of the job 'chief' must be a string"),
        ({1: ["c0:1"]}, TypeError, "must be a non-empty string; got 1"),
        ({"chief": ["c0"]}, ValueError, "must be 'host:port' .*got 'c0'"),
        ({"chief": ["c0:65536"]}, ValueError, "at most 65535; got 'c0:65536'"),
        ({"chief": [""], "ps": [""]}, ValueError, "job 'ps' must be 'host:port'"),
        ({"worker": ["w0:1"]}, ValueError, "exactly one task of .* job 'chief'.*got 0"),
        ({"chief": ["c:1"], "master": ["c:2"]}, ValueError, "exactly one.*got 2"),
        (
            {"chief": ["c:1"], "ps": ["p:1", "p:1"]},
            ValueError,
            r"an address of its own.*got \['p:1', 'p:1'\]",
        ),
    ]:
        with pytest.raises(error, match=message):
            ClusterSpec(jobs)


def test_tasks_that_are_not_there():
    for job, index, message in [
        ("helper", 0, "has no job 'helper': add it"),
        ("worker", 2, "Task 2 of the job 'worker' is not in the cluster, which has 2"),
        ("worker", -1, "Task -1 of the job 'worker' is not"),
    ]:
        with pytest.raises(ValueError, match=message):
            CLUSTER.task_address(job, index)
        with pytest.raises(ValueError, match=message):
            TaskConfig(job, index, CLUSTER)


# TaskConfig


def test_wrong_tasks_are_refused():
    for args, error, message in [
        ((1,), TypeError, "type of a task must be a string; got 1"),
        (("worker", "0"), TypeError, "index of a task must be an integer; got '0'"),
        (("worker", 0, JOBS), TypeError, "'cluster' of a task must be a ClusterSpec"),
        (("worker", 1), ValueError, "Without a cluster there is only .*'worker' 1"),
        (("evaluator", 0, CLUSTER), ValueError, "no cluster, which it is outside of"),
        (("evaluator", -1), ValueError, "must have an index >= 0"),
    ]:
        with pytest.raises(error, match=message):
            TaskConfig(*args)


# JSON; what TensorFlow does with it is in golden/test_semantics.py


def test_skest_config_comes_before_tf_config_and_empty_is_none():
    task = {"type": "evaluator", "index": 1}
    both = {
        "SKEST_CONFIG": json.dumps({"task": task}),
        "TF_CONFIG": "broken",
        "RANK": "0",
        "WORLD_SIZE": "1",
    }
    assert task_from_env(both) == TaskConfig("evaluator", 1)
    both["SKEST_CONFIG"] = " "
    with pytest.raises(ValueError, match="TF_CONFIG must hold JSON; got broken"):
        task_from_env(both)
    both["TF_CONFIG"] = ""
    assert task_from_env(both).type == "chief"
    assert task_from_env({}) == TaskConfig()


def test_an_evaluator_may_be_listed_in_the_cluster():
    config = {"cluster": {**JOBS, "evaluator": ["e0:1"]}}
    config["task"] = {"type": "evaluator", "index": 0}
    assert from_json(config) == TaskConfig("evaluator", 0)
    config["task"] = {"type": "ps", "index": 0}
    assert from_json(config) == TaskConfig("ps", 0, CLUSTER)


def test_wrong_json_is_refused():
    for config, error, message in [
        ("{'cluster': {}}", ValueError, "SKEST_CONFIG must hold JSON.*double quotes"),
        ("[" * 100_000, ValueError, r"must hold JSON; got \[\[\[.*\.\.\.: maximum"),
        ("[]", TypeError, r"SKEST_CONFIG must be a JSON object \{...\}; got \[\]"),
        ({"cluster": []}, TypeError, r'"cluster" of SKEST_CONFIG must be .*got \[\]'),
        ({"task": "worker"}, TypeError, '"task" of SKEST_CONFIG must be a JSON object'),
        ({"task": {"type": 3}}, TypeError, '"type" of SKEST_CONFIG must be a string'),
        ({"task": {"index": "x"}}, ValueError, "must be an integer; got 'x'"),
        ({"task": {"index": 1}}, ValueError, "Without a cluster there is only"),
        ({"model_dir": 3}, TypeError, '"model_dir" of SKEST_CONFIG must be a string'),
        ({"service": ""}, TypeError, '"service" of SKEST_CONFIG must be a JSON object'),
        ({"cluster": JOBS}, ValueError, 'must have "type", because there is'),
        ({"model_dir": ""}, ValueError, '"model_dir" of .* must not be empty. Name'),
        *(
            (
                {"cluster": cluster, "task": {"type": type_, "index": 0}},
                ValueError,
                "a 'master' has no 'evaluator', .* Call the master 'chief'",
            )
            for type_, cluster in [
                ("evaluator", {"master": ["m:1"]}),
                ("evaluator", {"master": ["m:1"], "evaluator": ["e:1"]}),
                ("master", {"master": ["m:1"], "evaluator": ["e:1"]}),
            ]
        ),
        (
            {"cluster": JOBS, "task": {"type": "ps"}},
            ValueError,
            'must have "index", because there is',
        ),
        (
            {"cluster": JOBS, "task": {"type": "ps", "index": 2}},
            ValueError,
            "Task 2 of the job 'ps' is not in the cluster",
        ),
    ]:
        with pytest.raises(error, match=message):
            from_json(config)


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(
    plain | st.sampled_from(["chief", "worker", "c0:1", JOBS]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["cluster", "task", "type", "index", "chief", "ps"]), inner
        )
    ),
    max_leaves=6,
)
KEYS = ["cluster", "task", "model_dir", "service", "session_master"]


@given(st.one_of(values, st.dictionaries(st.sampled_from(KEYS), values)))
def test_json_of_any_shape_is_a_task_or_a_clear_error(config):
    try:
        task = from_json(config)
    except (ValueError, TypeError) as error:
        assert str(error).endswith((".", "}"))
    else:
        assert isinstance(task, TaskConfig)


# torchrun and SLURM


def torchrun(rank, n, **more):
    return {"RANK": str(rank), "WORLD_SIZE": str(n), **more}


def tasks_of(environments):
    tasks = [task_from_env(environ) for environ in environments]
    assert len({task.cluster for task in tasks}) == 1
    return [(task.type, task.index, task.local_rank) for task in tasks], tasks[
        0
    ].cluster


FIVE = [
    *[("ps", 0, 0), ("ps", 1, 1), ("chief", 0, 2)],
    *[("worker", 0, 0), ("worker", 1, 1)],
]


def test_torchrun():
    tasks, cluster = tasks_of(
        torchrun(
            rank,
            5,
            LOCAL_RANK=str(rank % 3),
            LOCAL_WORLD_SIZE="3",
            MASTER_ADDR="h0",
            SKEST_NUM_PS="2",
        )
        for rank in range(5)
    )
    assert tasks == FIVE
    assert cluster.as_dict() == {
        "ps": ["h0:2222", "h0:2223"],
        "chief": ["h0:2224"],
        "worker": ["", ""],
    }


SLURM = {
    "SLURM_NTASKS": "5",
    "SLURM_JOB_NODELIST": "n[09-10]",
    "SLURM_TASKS_PER_NODE": "3,2",
}


def slurm(rank, **more):
    return {**SLURM, "SLURM_PROCID": str(rank), **more}


def test_slurm():
    tasks, cluster = tasks_of(slurm(rank, SKEST_NUM_PS="2") for rank in range(5))
    assert tasks == FIVE
    assert cluster.as_dict() == {
        "ps": ["n09:2222", "n09:2223"],
        "chief": ["n09:2224"],
        "worker": ["n10:2222", "n10:2223"],
    }


def test_a_slurm_step_may_be_smaller_than_its_job():
    step = {
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NODELIST": "n10",
        "SLURM_STEP_TASKS_PER_NODE": "2",
    }
    task = task_from_env(slurm(1, **step))
    assert task.cluster.as_dict() == {"chief": ["n10:2222"], "worker": ["n10:2223"]}


def test_wrong_variables_of_launchers_are_refused():
    for environ, message in [
        (torchrun("x", 2), "RANK must be an integer of 0 to 1; got 'x'"),
        (torchrun(0, 2, LOCAL_RANK="-1"), "LOCAL_RANK .* be an integer of at least 0"),
        (torchrun(0, 2, SKEST_NUM_PS="2"), "must be less than WORLD_SIZE=2"),
        (torchrun(0, 2, SKEST_NUM_PS="1"), "must have a host in MASTER_ADDR"),
        (
            torchrun(0, 3, SKEST_NUM_PS="2", MASTER_ADDR="h0"),
            "must be on the first host.*LOCAL_WORLD_SIZE=1",
        ),
        (torchrun(0, 2, SKEST_PORT="0"), "SKEST_PORT must be an integer of 1 to 65535"),
        (slurm(5), "SLURM_PROCID must be an integer of 0 to 4"),
        (slurm(0, SLURM_JOB_NODELIST=""), "SLURM_JOB_NODELIST.* .* names with ranges"),
        (slurm(0, SKEST_NUM_PS="5"), "must be less than SLURM_NTASKS=5"),
        (slurm(1, SLURM_NODEID="1", SLURM_LOCALID="0"), "--distribution=block"),
        (slurm(4, SKEST_PORT="65535"), "at most 65535; got 'n09:65536'"),
    ]:
        with pytest.raises(ValueError, match=message):
            task_from_env(environ)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a[08-11],b", "a08 a09 a10 a11 b"),
        ("n[1,3-4,007]x", "n1x n3x n4x n007x"),
        ("r[1-2]n[0-1]", "r1n0 r1n1 r2n0 r2n1"),
    ],
)
def test_a_list_of_nodes_is_expanded_as_by_scontrol(text, hosts):
    assert expand_nodes(text) == hosts.split()


def test_other_texts_are_refused():
    for text, message in [
        ("", "must be names with ranges in brackets.*got ''"),
        ("a,,b", "must be names"),
        ("n[1-2", "must be names"),
        ("n[[1]]", "must be names"),
        ("n[]", "A range of SLURM nodes .* got ''"),
        ("n[3-1]", "ascending order.*got '3-1'"),
        ("n[a-b]", "got 'a-b'"),
        ("n[1-2-3]", "got '1-2-3'"),
    ]:
        with pytest.raises(ValueError, match=message):
            expand_nodes(text)


@given(st.text("na[],-01 ", max_size=12))
def test_nothing_but_a_value_error_is_raised(text):
    with contextlib.suppress(ValueError):
        assert all(expand_nodes(text))


def test_hosts_of_tasks():
    for n_tasks, counts, expected in [(6, "2(x3)", "aabbcc"), (6, "4,1(x2)", "aaaabc")]:
        assert hosts_of_tasks(list("abc"), n_tasks, counts) == list(expected)


def test_counts_that_do_not_fit():
    for counts, message in [
        ("2", "must give 6 tasks to 3 nodes"),
        ("", "must be counts such as"),
        ("2(x999999999)", "must give 6 tasks to 3 nodes"),
        ("-2", "must be counts such as"),
    ]:
        with pytest.raises(ValueError, match=message):
            hosts_of_tasks(list("abc"), 6, counts)
