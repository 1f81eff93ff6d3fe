"""Reads a log directory with each of TensorBoard's readers and prints what they show as JSON.

accumulator: the class that scripts use; multiplexer: what the server uses with --load_fast=false;
data_server: what it uses by default.
"""

import json
import os
import sys
import time

from tensorboard import context
from tensorboard.backend.event_processing import data_provider, event_accumulator, plugin_event_multiplexer
from tensorboard.data import server_ingester
from tensorboard.util import grpc_util

PLUGINS = {"scalars": 0, "histograms": 0, "text": 0}  # 0: all points, not a sample
DEADLINE_SECONDS = 60


def read_accumulator(path):
    guidance = dict.fromkeys(event_accumulator.DEFAULT_SIZE_GUIDANCE, 0)
    events = event_accumulator.EventAccumulator(path, size_guidance=guidance).Reload()
    tags = events.Tags()
    histogram = lambda value: [value.min, value.max, value.num, value.sum, value.sum_squares]
    return {
        "scalars": {
            tag: [[event.step, event.wall_time, repr(event.value)] for event in events.Scalars(tag)]
            for tag in tags["scalars"]
        },
        "histograms": {
            tag: [
                [event.step, histogram(event.histogram_value), event.histogram_value.bucket]
                for event in events.Histograms(tag)
            ]
            for tag in tags["histograms"]
        },
        "text": {
            tag: [[event.step, event.tensor_proto.string_val[0].decode()] for event in events.Tensors(tag)]
            for tag in tags["tensors"]
        },
    }


def read_provider(provider):
    arguments = {"ctx": context.RequestContext(), "experiment_id": "", "downsample": 1_000_000}
    scalars = provider.read_scalars(plugin_name="scalars", **arguments)
    histograms = provider.read_tensors(plugin_name="histograms", **arguments)
    texts = provider.read_tensors(plugin_name="text", **arguments)
    runs = {}
    for kind, data, point in (
        ("scalars", scalars, lambda datum: [datum.step, datum.wall_time, repr(float(datum.value))]),
        ("histograms", histograms, lambda datum: [datum.step, datum.numpy.tolist()]),
        ("text", texts, lambda datum: [datum.step, datum.numpy.item().decode()]),
    ):
        for run, tags in data.items():
            run = runs.setdefault(run, {"scalars": {}, "histograms": {}, "text": {}})
            run[kind] = {tag: [point(datum) for datum in series] for tag, series in tags.items()}
    return runs


def last_points(runs):
    """By series; of a histogram only the step, for one reader rounds the buckets to 32 bits."""
    return {
        (run, kind, tag): repr(series[-1][:1] if kind == "histograms" else series[-1])
        for run, kinds in runs.items()
        for kind, tags in kinds.items()
        for tag, series in tags.items()
    }


def read_data_server(logdir, expected):
    """The server does not say when it has read everything: asks until it shows the last points, or for a minute."""
    ingester = server_ingester.SubprocessServerDataIngester(
        server_ingester.get_server_binary(),
        logdir,
        reload_interval=0,
        channel_creds_type=grpc_util.ChannelCredsType.LOCAL,
        samples_per_plugin=PLUGINS,
    )
    ingester.start()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        shown = read_provider(ingester.data_provider)
        if last_points(shown) == last_points(expected) or time.monotonic() > deadline:
            return shown
        time.sleep(0.05)


def main(logdir):
    multiplexer = plugin_event_multiplexer.EventMultiplexer(
        size_guidance={}, tensor_size_guidance=PLUGINS
    ).AddRunsFromDirectory(logdir)
    multiplexer.Reload()
    shown = read_provider(data_provider.MultiplexerDataProvider(multiplexer, logdir))
    readers = {
        "accumulator": {run: read_accumulator(os.path.join(logdir, run)) for run in multiplexer.Runs()},
        "multiplexer": shown,
        "data_server": read_data_server(logdir, shown),
    }
    json.dump(readers, sys.stdout)


main(sys.argv[1])
