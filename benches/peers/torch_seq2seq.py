"""A whole training step of seq2seq in PyTorch and in Windlass, in turn, with two threads.

    torch_seq2seq.py WINDLASS_BINARY [ROUNDS]

2 x 200 GRU, batch 64, bucket (10,15), vocabularies of 40,000, 512 samples, gradients clipped to 5, SGD. Both train on
sentences of random words that fill the bucket. PyTorch's side holds, as Windlass does, only the rows of the tables that
a batch touches in the graph, and updates only those; Windlass's is `windlass train seq2seq`, its parameter server and
all, as its summary.json has it.
"""
import json, os, random, statistics, subprocess, sys, tempfile, time

THREADS = "2"
os.environ["OMP_NUM_THREADS"] = os.environ["RAYON_NUM_THREADS"] = THREADS
import torch, torch.nn as nn, torch.nn.functional as F

torch.set_num_threads(int(THREADS))
torch.manual_seed(1)
SIZE, BATCH, FROM, TO, WORDS, SAMPLES, RATE, LONGEST = 200, 64, 10, 14, 40_000, 512, 0.5, 5.0
STEPS = 100


class Network(nn.Module):
    """The tables are given rows, not parameters."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.GRU(SIZE, SIZE, num_layers=2)
        self.cells = nn.ModuleList(nn.GRUCell(SIZE, SIZE) for _ in range(2))
        self.word, self.attended = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE, bias=False)
        self.key, self.query = nn.Linear(SIZE, SIZE, bias=False), nn.Linear(2 * SIZE, SIZE)
        self.direction = nn.Parameter(torch.empty(SIZE).uniform_(-0.1, 0.1))
        self.output = nn.Linear(2 * SIZE, SIZE)

    def forward(self, source, target):
        outputs, states = self.encoder(source)
        states = list(states)
        values = outputs.transpose(0, 1).contiguous()
        keys, found, said = self.key(values), torch.zeros(BATCH, SIZE), []
        for word in self.word(target).unbind(0):
            inner = word + self.attended(found)
            for index, cell in enumerate(self.cells):
                inner = states[index] = cell(inner, states[index])
            query = self.query(torch.cat(states, 1)).unsqueeze(1)
            weights = torch.softmax(torch.tanh(keys + query) @ self.direction, 1)
            found = (weights.unsqueeze(1) @ values).squeeze(1)
            said.append(torch.cat([inner, found], 1))
        return self.output(torch.cat(said))


def torch_step():
    network = Network()
    dense = list(network.parameters())
    table = lambda bound: torch.empty(WORDS, SIZE).uniform_(-bound, bound)
    from_table, to_table, output_table, bias_table = table(1.7), table(1.7), table(0.07), torch.zeros(WORDS, 1)
    range_log = torch.log(torch.tensor(WORDS + 1.0))
    expected = lambda ids: torch.log(SAMPLES * torch.log1p(1 / (ids + 1.0)) / range_log)
    zeros = torch.zeros(TO * BATCH, dtype=torch.long)

    def rows_of(table, rows):
        return table.index_select(0, rows).requires_grad_()

    def step():
        source, target = torch.randint(4, WORDS, (FROM, BATCH)), torch.randint(4, WORDS, (TO, BATCH))
        right = torch.randint(4, WORDS, (TO * BATCH,))
        drawn = (torch.exp(torch.rand(SAMPLES) * range_log) - 1).long().clamp_max(WORDS - 1)
        from_rows, from_places = torch.unique(source, return_inverse=True)
        to_rows, to_places = torch.unique(target, return_inverse=True)
        output_rows, output_places = torch.unique(torch.cat([right, drawn]), return_inverse=True)
        leaves = [rows_of(from_table, from_rows), rows_of(to_table, to_rows),
                  rows_of(output_table, output_rows), rows_of(bias_table, output_rows)]
        hidden = network(F.embedding(from_places, leaves[0]), F.embedding(to_places, leaves[1]))
        weights, bias = F.embedding(output_places, leaves[2]), F.embedding(output_places, leaves[3]).squeeze(1)
        count = TO * BATCH
        right_scores = (hidden * weights[:count]).sum(1) + bias[:count] - expected(right)
        scores = hidden @ weights[count:].t() + (bias[count:] - expected(drawn))
        scores = scores.masked_fill(right.unsqueeze(1) == drawn, -1e37)
        loss = F.cross_entropy(torch.cat([right_scores.unsqueeze(1), scores], 1), zeros)
        for parameter in dense:
            parameter.grad = None
        loss.backward()
        nn.utils.clip_grad_norm_([*dense, *leaves], LONGEST)
        with torch.no_grad():
            torch._foreach_add_(dense, [parameter.grad for parameter in dense], alpha=-RATE)
            tables = zip((from_table, to_table, output_table, bias_table),
                         (from_rows, to_rows, output_rows, output_rows), leaves)
            for table, rows, leaf in tables:
                table.index_add_(0, rows, leaf.grad, alpha=-RATE)
        assert torch.isfinite(loss)
    return step


def measure(step):
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times[STEPS // 5:]) * 1e3


def word(number):
    letters = ""
    for _ in range(4):
        letters += chr(ord("a") + number % 26)
        number //= 26
    return letters


def write_text(directory):
    """Every word comes up, and every sentence is as long as the bucket lets it be."""
    draw = random.Random(1)
    for name, length in (("from", FROM - 1), ("to", TO - 1)):
        words = list(range(WORDS - 4))
        words += [draw.randrange(WORDS - 4) for _ in range(12_000 * length - len(words))]
        draw.shuffle(words)
        with open(os.path.join(directory, name), "w") as file:
            for start in range(0, len(words), length):
                print(*(word(number) for number in words[start:start + length]), file=file)


def windlass(binary, directory, layout):
    run = os.path.join(directory, "run")
    subprocess.run(
        [binary, *layout, "--train-from", "from", "--train-to", "to", "--text-cache", "cache", "--buckets", "10,15",
         "--layers", "2", "--size", "200", "--batch-size", "64", "--samples", "512", "--optimizer", "sgd",
         "--learning-rate", "0.5", "--steps", str(STEPS), "--report-every", "100000", "--score-pairs", "1",
         "--run-dir", run, "--checkpoint-secs", "0", "--resume", "never"],
        cwd=directory, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(os.path.join(run, "summary.json")) as file:
        return json.load(file)


def main():
    binary, rounds = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3
    ours, theirs, step = [], [], torch_step()
    with tempfile.TemporaryDirectory() as directory:
        write_text(directory)
        for _ in range(rounds):
            summary = windlass(binary, directory, ["train", "seq2seq", "--threads", THREADS])
            ours.append(summary["step_ms"]["p50"])
            theirs.append(measure(step))
            print(f"round: windlass {ours[-1]:.2f} ms, PyTorch {theirs[-1]:.2f} ms", file=sys.stderr, flush=True)
    ratio = statistics.median(b / a for a, b in zip(ours, theirs))
    print(f"{'case':20} {'windlass ms':>12} {'PyTorch ms':>12} {'ratio':>7}")
    print(f"{'seq2seq':20} {statistics.median(ours):12.2f} {statistics.median(theirs):12.2f} {ratio:7.2f}")
    bytes_moved = summary["bytes_per_step"]
    print(f"traffic per step: {bytes_moved['sent'] / 1e6:.1f} MB sent, {bytes_moved['received'] / 1e6:.1f} MB received")


if __name__ == "__main__":
    main()
