"""What a checkpoint of a 100 MB model costs a run on 1 ps and 1 worker.

    checkpoint_cost.py WINDLASS_BINARY [ROUNDS]

Runs on one machine differ by more than a checkpoint costs, so it is measured within a run: how much longer steps take
from a checkpoint's cut until it is written than the others do. Prints that, the longest such step, for how long at the
most a checkpoint held up a push, and the memory of the ps at its peak.
"""
import datetime, json, os, pathlib, re, statistics, subprocess, sys, tempfile, threading, time

STEPS, EVERY = 250, 4
MODEL = "mnist --hidden 31450 --batch-size 10 --optimizer sgd --learning-rate 0.0001"


def watch_memory(binary, peaks):
    """Notes the peak memory of the ps that the launcher has started, until it is gone."""
    while not peaks.get("over"):
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_text().split("\0")
                if words[0].endswith(os.path.basename(binary)) and "train" in words and "ps" in " ".join(words).split():
                    status = (process / "status").read_text()
                    peaks["ps"] = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) // 1024
            except (OSError, TypeError):
                pass
        time.sleep(0.2)


def run(binary):
    with tempfile.TemporaryDirectory() as directory:
        flags = f"--evaluate end --steps {STEPS} --log-every 1 --format json --checkpoint-secs {EVERY} --run-dir {directory}"
        peaks = {}
        watcher = threading.Thread(target=watch_memory, args=(binary, peaks))
        watcher.start()
        output = subprocess.check_output([binary, "launch", *MODEL.split(), "--workers", "1", *flags.split()], text=True)
        peaks["over"] = True
        watcher.join()
        log = (pathlib.Path(directory) / "ps-0.log").read_text()
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    times = {event["global_step"]: event["time"] for event in events if event["event"] == "step"}
    steps = sorted(times)
    took = {step: times[step] - times[before] for before, step in zip(steps, steps[1:])}
    midnight = datetime.datetime.fromtimestamp(times[steps[0]], datetime.timezone.utc).replace(
        hour=0, minute=0, second=0, microsecond=0).timestamp()
    within, count = set(), 0
    # The first is written while the run warms up, the last when nobody trains.
    for clock, step in re.findall(r"^(\S+)\s+INFO checkpoint of step (\d+)", log, re.M)[1:-1]:
        hours, minutes, seconds = map(float, clock.split(":"))
        written = midnight + hours * 3600 + minutes * 60 + seconds
        within |= {s for s in took if s >= int(step) and times[s] - took[s] < written}
        count += 1
    others = statistics.mean(took[step] for step in took if step not in within and step > 20)
    lost = sum(took[step] - others for step in within) / count
    longest = max(took[step] for step in within)
    held_up = max(map(float, re.findall(r"pushes waited ([0-9.]+) ms", log)))
    return lost, 1e3 * others, 1e3 * longest, held_up, peaks.get("ps")


def main():
    binary, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    results = [run(binary) for _ in range(rounds)]
    for lost, others, longest, held_up, memory in results:
        print(f"{1e3 * lost:.0f} ms a checkpoint, {lost / 10:.2%} of a run with one every 10 s; "
              f"steps {others:.0f} ms, during one {longest:.0f} ms at the most; "
              f"pushes held up {held_up:.1f} ms at the most; ps memory {memory} MB")
    print(f"median {statistics.median(lost for lost, *_ in results) / 10:.2%}")


main()
