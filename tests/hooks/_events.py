# SPDX-License-Identifier: Apache-2.0
"""Reads event files back with TensorBoard's own reader."""

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def read(directory):
    """Return everything that TensorBoard knows of a directory."""
    # Of files that begin in one second, TensorBoard may take a later one for an earlier
    # one ("….10" before "….9"), and would purge what seems to have been repeated.
    return EventAccumulator(
        str(directory), size_guidance=dict.fromkeys(KINDS, 0), purge_orphaned_data=False
    ).Reload()


KINDS = ("scalars", "histograms", "compressedHistograms", "tensors")


def scalars(directory):
    """Return {tag: {step: value}}; a step that comes twice is an error."""
    events = read(directory)
    found = {}
    for tag in events.Tags()["scalars"]:
        points = sorted((event.step, event.value) for event in events.Scalars(tag))
        steps = [step for step, _ in points]
        assert steps == sorted(set(steps)), f"{tag} repeats steps: {steps}"
        found[tag] = dict(points)
    return found


def histograms(directory):
    """Return {tag: {step: histogram}}."""
    events = read(directory)
    return {
        tag: {event.step: event.histogram_value for event in events.Histograms(tag)}
        for tag in events.Tags()["histograms"]
    }


def event_files(directory):
    return sorted(path.name for path in directory.glob("*tfevents*"))
