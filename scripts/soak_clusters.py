"""The clusters that scripts/soak does harm to: tasks of `launch`, or tasks on hosts of their own (network namespaces)."""

import os
import pathlib
import shutil
import signal
import subprocess


class Launched:
    """A cluster that `launch` runs, and whose tasks it starts again."""

    def __init__(self, command, directory):
        self.output = open(directory / "launch.out", "w")
        self.launcher = subprocess.Popen(command, stdout=self.output, stderr=subprocess.STDOUT)

    def tasks(self):
        for pid, parent, words in processes():
            if parent == self.launcher.pid and "--job-name" in words:
                job, index = (words[words.index(flag) + 1] for flag in ("--job-name", "--task-index"))
                yield f"{job} {index}", pid

    def look_after(self):
        """Returns the exit code once the run has ended."""
        return self.launcher.poll()

    def last_words(self):
        self.output.flush()
        return pathlib.Path(self.output.name).read_text().splitlines()[-20:]

    def close(self):
        self.launcher.kill()  # which takes its tasks along; nothing, if it has ended
        self.launcher.wait()
        self.output.close()


class Hosts:
    """Tasks that run each on a host of its own, a network namespace, and can be cut off from the others. This script starts
    a task again that was killed."""

    NETWORK = "10.77.{}.{}"

    def __init__(self, command, directory, ps, workers):
        self.name, self.net = f"wl{os.getpid()}", os.getpid() % 250
        self.directory, self.running, self.exit_codes = directory, {}, {}
        tasks = [("ps", index) for index in range(ps)] + [("worker", index) for index in range(workers)]
        # The switch is in a namespace too, out of reach of this machine's firewall.
        ip("netns", "add", self.switch())
        ip("-n", self.switch(), "link", "add", "bridge", "type", "bridge")
        ip("-n", self.switch(), "link", "set", "bridge", "up")
        self.hosts = {task: self.add_host(number) for number, task in enumerate(tasks)}
        address = lambda task: f"{self.NETWORK.format(self.net, tasks.index(task) + 2)}:2222"
        lists = [",".join(address(task) for task in tasks if task[0] == job) for job in ("ps", "worker")]
        self.commands = {
            (job, index): [*command, f"--job_name={job}", f"--task_index={index}"]
            + [f"--ps_hosts={lists[0]}", f"--worker_hosts={lists[1]}"]
            for job, index in tasks
        }
        for task in tasks:
            self.start(task)

    @staticmethod
    def unavailable():
        """Why there can be no hosts here, if so."""
        if os.geteuid() != 0:
            return "network namespaces need root"
        if not shutil.which("ip"):
            return "there is no `ip` (on Debian: apt install iproute2)"
        tried = subprocess.run(["ip", "netns", "add", "windlass-probe"], capture_output=True, text=True)
        subprocess.run(["ip", "netns", "del", "windlass-probe"], capture_output=True)
        return tried.stderr.strip() if tried.returncode else None

    def switch(self):
        return f"{self.name}s"

    def add_host(self, number):
        host, outside, inside = f"{self.name}h{number}", f"{self.name}o{number}", f"{self.name}i{number}"
        ip("netns", "add", host)
        ip("link", "add", outside, "type", "veth", "peer", "name", inside)
        ip("link", "set", inside, "netns", host)
        ip("link", "set", outside, "netns", self.switch())
        ip("-n", self.switch(), "link", "set", outside, "master", "bridge", "up")
        ip("-n", host, "addr", "add", self.NETWORK.format(self.net, number + 2) + "/24", "dev", inside)
        ip("-n", host, "link", "set", inside, "up")
        ip("-n", host, "link", "set", "lo", "up")
        return host, outside

    def start(self, task):
        log = open(self.directory / "{}-{}.log".format(*task), "a")
        command = ["ip", "netns", "exec", self.hosts[task][0], *self.commands[task]]
        self.running[task] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        log.close()

    def tasks(self):
        return [("{} {}".format(*task), process.pid) for task, process in self.running.items()]

    def look_after(self):
        """Starts killed tasks again. Returns the exit code once all have ended: the first that is not zero."""
        for task, process in list(self.running.items()):
            code = process.poll()
            if code == -signal.SIGKILL:
                self.start(task)
            elif code is not None:
                del self.running[task]
                self.exit_codes[task] = code
        return None if self.running else max(self.exit_codes.values())

    def cut_off(self, name):
        """Takes a task's host off the network; returns what connects it again."""
        job, index = name.split()
        _, outside = self.hosts[job, int(index)]
        ip("-n", self.switch(), "link", "set", outside, "down")
        return lambda: ip("-n", self.switch(), "link", "set", outside, "up")

    def last_words(self):
        words = [f"exit codes: {self.exit_codes}"]
        for log in sorted(self.directory.glob("*.log")):
            words += [f"{log.name}:", *log.read_text().splitlines()[-8:]]
        return words

    def close(self):
        for process in self.running.values():
            process.kill()
            process.wait()
        for host in [*(host for host, _ in self.hosts.values()), self.switch()]:
            ip("netns", "del", host, check=False)


def ip(*words, check=True):
    subprocess.run(["ip", *words], check=check, capture_output=True)


def processes():
    """Every process's id, parent and arguments."""
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except (OSError, IndexError):
                continue  # it has just ended
            if state not in "ZX":
                yield int(entry.name), int(parent), words
