# SPDX-License-Identifier: Apache-2.0
"""How an ``input_fn`` is called, and which part of its data one worker reads."""

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch.utils.data import DataLoader

from skest.config.cluster import TaskConfig
from skest.core.checks import arguments_named, check_input_fn
from skest.inputs.batches import check_batches
from skest.inputs.input_context import InputContext, context_among
from skest.inputs.loaders import repeatable, shard_loader
from skest.inputs.pipeline import Pipeline


def context_of(task: TaskConfig) -> InputContext | None:
    """Return which part of the input a task reads.

    Parameters
    ----------
    task : TaskConfig
        The chief reads part 0 and worker i part i + 1.

    Returns
    -------
    InputContext or None
        None if it trains alone, or does not train: it reads all there is to read.

    Examples
    --------
    >>> from skest.distributed import ClusterSpec, TaskConfig
    >>> from skest.inputs.sharding import context_of
    >>> cluster = ClusterSpec({"chief": ["h0:1"], "worker": ["h1:1", "h2:1"]})
    >>> context_of(TaskConfig("worker", 1, cluster))
    InputContext(num_input_pipelines=3, input_pipeline_id=2)
    """
    # Evaluators read all, and parameter servers nothing.
    if not (task.is_chief or task.type == "worker"):
        return None
    # By its index alone, worker 0 would read what the chief reads (tensorflow#23294).
    index = 0 if task.is_chief else task.index + 1
    return context_among(task.num_worker_replicas, index)


def shard(data: Any, context: InputContext | None) -> Any:
    """Return the part of one worker.

    Parameters
    ----------
    data : ArrayDataset, Pipeline, DataLoader or iterable of batches
        What an ``input_fn`` returned. Something of another kind may have a method
        ``for_worker(context)``, which returns its part.
    context : InputContext or None
        How many workers there are, and which one this is; None is one.

    Returns
    -------
    ArrayDataset, Pipeline or iterable
        Together the parts of all workers are the data, each row once (but see
        `InputContext.rows_of`):

        - `ArrayDataset`: every n-th row.
        - `Pipeline`: every n-th row group or file of `parquet_input_fn` and
          `csv_input_fn`, or else every n-th element of the source, before all operations;
          one with ``shard`` among them is left alone.
        - ``DataLoader``: a sampler over every n-th row. If it has another order than that
          of the rows or a random one, every n-th batch of its sampler, which has to give
          the same batches to all workers if rows are to be read once; one with a
          ``DistributedSampler`` is left alone.
        - Any other iterable, an iterable dataset too: every n-th batch. All are read.

        Random orders follow from the same seeds, but differ between workers.

    Raises
    ------
    ValueError
        If there are fewer rows, or other parts, than workers.
    TypeError
        If `data` is no iterable of batches.

    Notes
    -----
    As the automatic sharding of ``tf.data.experimental.AutoShardPolicy``; the Estimators
    of TensorFlow had none.

    Examples
    --------
    >>> from skest.inputs import ArrayDataset, InputContext
    >>> from skest.inputs.sharding import shard
    >>> data = ArrayDataset({"x": range(7)}, batch_size=3)
    >>> for i in range(3):
    ...     print([batch["x"].tolist() for batch in shard(data, InputContext(3, i))])
    [[0, 3, 6]]
    [[1, 4]]
    [[2, 5]]
    """
    if context is None or context.num_input_pipelines == 1:
        return data
    data = repeatable(data)
    part: Any = None
    if isinstance(data, DataLoader):
        part = shard_loader(data, context)
    elif hasattr(data, "for_worker"):
        part = data.for_worker(context)
    if part is not None:
        return part
    check_batches(data)
    n, index = context.num_input_pipelines, context.input_pipeline_id
    return Pipeline(data).shard(n, index)


def call_sharded(
    input_fn: Callable[..., Any], context: InputContext | None, **available: Any
) -> Any:
    """Call `input_fn`, and take the part of one worker of what it returns.

    One that names ``input_context`` is told about the worker, and returns its part.

    Parameters
    ----------
    input_fn : callable
        See `skest.Estimator.train`.
    context : InputContext or None
        How many workers there are, and which one this is; None is one.
    **available
        Other arguments that `input_fn` may name.

    Returns
    -------
    ArrayDataset or iterable of batches
        The data of this worker.
    """
    data = call_input_fn(input_fn, input_context=context, **available)
    # Who asks which worker it is has divided the data; a second division would lose
    # rows.
    if context is None or "input_context" in inspect.signature(input_fn).parameters:
        return data
    return shard(data, context)


def call_input_fn(input_fn: Callable[..., Any], **available: Any) -> Any:
    """Call `input_fn` with those of `available` that it names.

    Raises
    ------
    TypeError
        If it is not callable or requires an argument that is not available.
    """
    check_input_fn(input_fn)
    # A function without arguments and local variables.
    if isinstance(input_fn, FunctionType) and not input_fn.__code__.co_varnames:
        return input_fn()  # the usual case, for which reading a signature takes long
    named, missing = arguments_named(input_fn, available)
    if missing:
        raise TypeError(
            f"input_fn requires {', '.join(map(repr, missing))}, but only "
            f"{', '.join(available)} are passed (those that it names)."
        )
    return input_fn(**{name: available[name] for name in named})
