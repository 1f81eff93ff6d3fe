"""What it costs a run to be watched: probes and metrics of every task asked for once a second, and one viewer of the page.

    watching_cost.py WINDLASS_BINARY [ROUNDS]

Runs on one machine differ by more than watching costs, so it is measured within a run: in every round the same run is left
alone for a while, then scraped, then shown to a viewer, in changing order. Prints the median speed of each and the median
of its ratios to being left alone in the same round. Sampling cannot be switched off; what it costs at the most is the
processor time of a ps that waits for its workers.
"""
import contextlib, json, os, pathlib, random, socket, statistics, subprocess, sys, tempfile, threading, time, urllib.request

WINDOW_SECS, IDLE_SECS = 3, 10
MODES = {"async": [], "sync": ["--mode", "sync"]}
ASKED_FOR = ["livez", "readyz", "startupz", "metrics"]


def fetch(url):
    with urllib.request.urlopen(url, timeout=10) as response:
        return response.read()


class Cluster:
    """One ps and two workers on this machine. Without `workers`, the ps waits for them."""

    def __init__(self, binary, flags=(), workers=2):
        self.directory = tempfile.TemporaryDirectory()
        ps, *hosts = [f"127.0.0.1:{port}" for port in free_ports(3)]
        cluster = ["--ps_hosts", ps, "--worker_hosts", ",".join(hosts), "--steps", "1000000000", *flags]
        self.urls = [f"http://{host}/" for host in [ps, *hosts]]
        names = [("ps", 0), *(("worker", index) for index in range(workers))]
        self.tasks = [
            subprocess.Popen(
                [binary, "train", "mnist", *cluster, "--job_name", job, "--task_index", str(index)],
                cwd=self.directory.name, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for job, index in names
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for task in self.tasks:
            task.kill()
            task.wait()
        self.directory.cleanup()

    def step(self):
        return json.loads(fetch(self.urls[0] + "status.json"))["step"]

    def processor_seconds(self):
        fields = pathlib.Path(f"/proc/{self.tasks[0].pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def scrape(cluster, over):
    while not over.wait(1):
        for url in cluster.urls:
            for path in ASKED_FOR:
                fetch(url + path)


def view(cluster, over):
    fetch(cluster.urls[0])
    with urllib.request.urlopen(cluster.urls[0] + "events", timeout=10) as events:
        while not over.is_set():
            events.readline()


WATCHED = {"left alone": None, "scraped and probed": scrape, "one viewer": view}


def speed(cluster, watch):
    over = threading.Event()
    watcher = watch and threading.Thread(target=watch, args=(cluster, over))
    if watcher:
        watcher.start()
    (before, began), _ = (cluster.step(), time.monotonic()), time.sleep(WINDOW_SECS)
    steps, seconds = cluster.step() - before, time.monotonic() - began
    over.set()
    if watcher:
        watcher.join()
    return steps / seconds


def measure(binary, flags, rounds):
    with Cluster(binary, flags) as cluster:
        wait_until_it_trains(cluster)
        measured = {name: [] for name in WATCHED}
        for _ in range(rounds):
            for name in random.sample(list(WATCHED), len(WATCHED)):
                measured[name].append(speed(cluster, WATCHED[name]))
    return measured


def wait_until_it_trains(cluster):
    while True:
        with contextlib.suppress(OSError):
            if cluster.step() > 1000:
                return
        time.sleep(0.1)


def idle(binary):
    with Cluster(binary, workers=0) as cluster:
        time.sleep(2)
        before = cluster.processor_seconds()
        time.sleep(IDLE_SECS)
        return (cluster.processor_seconds() - before) / IDLE_SECS


def main():
    binary, rounds = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20
    print(f"a ps that waits for its workers uses {1e3 * idle(binary):.1f} ms of processor time a second")
    for mode, flags in MODES.items():
        measured = measure(binary, flags, rounds)
        alone = measured["left alone"]
        for name, speeds in measured.items():
            ratio = statistics.median(speed / other for speed, other in zip(speeds, alone))
            print(f"{mode}, {name}: {statistics.median(speeds):.0f} steps/s, {ratio:.3f} of left alone")


if __name__ == "__main__":
    main()
