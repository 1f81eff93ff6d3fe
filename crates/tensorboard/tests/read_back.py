"""Reads a log directory with each of TensorBoard's readers and prints what they show as JSON.

accumulator: the class that scripts use; multiplexer: what the server uses with --load_fast=false;
data_server: what it uses by default.
"""

import json
import os
import sys
import time

from google.protobuf import json_format
from tensorboard import context
from tensorboard.backend.event_processing import data_provider, event_accumulator, plugin_event_multiplexer
from tensorboard.data import server_ingester
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups, plugin_data_pb2
from tensorboard.util import grpc_util

PLUGINS = {"scalars": 0, "histograms": 0, "text": 0, "images": 0, "hparams": 0}  # 0: all points, not a sample
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
            if not tag.startswith("_hparams_/")
        },
        "images": {
            tag: [
                [event.step, event.width, event.height, event.encoded_image_string.hex()]
                for event in events.Images(tag)
            ]
            for tag in tags["images"]
        },
        "hparams": hparams_by_tag(events),
    }


def hparams_by_tag(events):
    """The tags whose metadata are for the HParams plugin, and what they say."""
    metadata = {tag: events.SummaryMetadata(tag).plugin_data for tag in events.Tags()["tensors"]}
    content = lambda data: json_format.MessageToDict(plugin_data_pb2.HParamsPluginData.FromString(data.content))
    return {tag: content(data) for tag, data in metadata.items() if data.plugin_name == "hparams"}


def read_provider(provider):
    arguments = {"ctx": context.RequestContext(), "experiment_id": "", "downsample": 1_000_000}
    scalars = provider.read_scalars(plugin_name="scalars", **arguments)
    histograms = provider.read_tensors(plugin_name="histograms", **arguments)
    texts = provider.read_tensors(plugin_name="text", **arguments)
    runs = {}
    images = provider.read_blob_sequences(plugin_name="images", **arguments)
    blob = lambda reference: provider.read_blob(ctx=arguments["ctx"], blob_key=reference.blob_key)
    number = lambda reference: int(blob(reference))
    for kind, data, point in (
        ("scalars", scalars, lambda datum: [datum.step, datum.wall_time, repr(float(datum.value))]),
        ("histograms", histograms, lambda datum: [datum.step, datum.numpy.tolist()]),
        ("text", texts, lambda datum: [datum.step, datum.numpy.item().decode()]),
        ("images", images, lambda datum: [datum.step, *map(number, datum.values[:2]), blob(datum.values[2]).hex()]),
    ):
        for run, tags in data.items():
            run = runs.setdefault(run, {"scalars": {}, "histograms": {}, "text": {}, "images": {}})
            run[kind] = {tag: [point(datum) for datum in series] for tag, series in tags.items()}
    return runs


def read_sessions(provider):
    """What the HParams tab asks for and shows."""
    tensorboard = base_plugin.TBContext(data_provider=provider)
    statuses = [api_pb2.STATUS_UNKNOWN, api_pb2.STATUS_SUCCESS, api_pb2.STATUS_FAILURE, api_pb2.STATUS_RUNNING]
    request = api_pb2.ListSessionGroupsRequest(allowed_statuses=statuses, slice_size=1000)
    backend = backend_context.Context(tensorboard)
    response = list_session_groups.Handler(context.RequestContext(), backend, "", request).run()
    return {
        group.name: {
            "hparams": {name: json_format.MessageToDict(value) for name, value in group.hparams.items()},
            "metrics": {value.name.tag: value.value for value in group.metric_values},
            "status": api_pb2.Status.Name(group.sessions[0].status),
        }
        for group in response.session_groups
    }


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
            return shown | {"sessions": read_sessions(ingester.data_provider)}
        time.sleep(0.05)


def main(logdir):
    multiplexer = plugin_event_multiplexer.EventMultiplexer(
        size_guidance={}, tensor_size_guidance=PLUGINS
    ).AddRunsFromDirectory(logdir)
    multiplexer.Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, logdir)
    shown = read_provider(provider)
    readers = {
        "accumulator": {run: read_accumulator(os.path.join(logdir, run)) for run in multiplexer.Runs()},
        "multiplexer": shown | {"sessions": read_sessions(provider)},
        "data_server": read_data_server(logdir, shown),
    }
    json.dump(readers, sys.stdout)


main(sys.argv[1])
