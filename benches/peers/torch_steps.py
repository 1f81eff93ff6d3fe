"""PyTorch's side of crates/ops/examples/steps.rs, and both in turn.

    torch_steps.py STEPS_BINARY [ROUNDS]

runs every case of the example and of PyTorch alternately with two threads, and prints medians and their ratio.
"""
import os, statistics, subprocess, sys, time

THREADS = "2"
os.environ["OMP_NUM_THREADS"] = os.environ["RAYON_NUM_THREADS"] = THREADS
import torch, torch.nn as nn, torch.nn.functional as F

torch.set_num_threads(int(THREADS))
torch.manual_seed(1)


def language_model():
    """The embedding's gradient is sparse, as in the example: only rows that occur are updated."""
    embedding, cell, output = nn.Embedding(10_000, 256, sparse=True), nn.LSTM(256, 256), nn.Linear(256, 10_000)
    optimizer = torch.optim.SGD([*embedding.parameters(), *cell.parameters(), *output.parameters()], 0.1)
    words, targets = torch.randint(0, 10_000, (20, 32)), torch.randint(0, 10_000, (640,))

    def step():
        optimizer.zero_grad()
        states, _ = cell(embedding(words))
        F.cross_entropy(output(states.reshape(640, 256)), targets).backward()
        optimizer.step()
    return step


def layers(kind, length):
    """PyTorch's GRU applies the reset gate after the recurrent product: one product a step less than the example's."""
    network = kind(200, 200, num_layers=2)
    inputs, weights = torch.rand(length, 64, 200, requires_grad=True), torch.rand(length, 64, 200)

    def step():
        network.zero_grad()
        inputs.grad = None
        (network(inputs)[0] * weights).sum().backward()
    return step


def attention_decoder():
    size, batch, length, steps = 200, 64, 10, 15
    cell = nn.GRUCell(size, size)
    matrix = lambda *shape: torch.empty(*shape).uniform_(-0.07, 0.07).requires_grad_()
    encoded, words = matrix(batch, length, size), matrix(steps * batch, size)
    key, query, word, context_weight, direction = *(matrix(size, size) for _ in range(4)), matrix(size)
    weights = torch.rand(batch, size)
    leaves = [*cell.parameters(), encoded, words, key, query, word, context_weight, direction]

    def step():
        for leaf in leaves:
            leaf.grad = None
        keys, inputs = encoded @ key, words @ word
        state, context, total = torch.zeros(batch, size), torch.zeros(batch, size), 0
        for index in range(steps):
            state = cell(inputs[index * batch:(index + 1) * batch] + context @ context_weight, state)
            scores = torch.tanh(keys + (state @ query).unsqueeze(1)) @ direction
            context = (torch.softmax(scores, 1).unsqueeze(1) @ encoded).squeeze(1)
            total = total + (context * weights + state).sum()
        total.backward()
    return step


def sampled_softmax():
    """Candidates are drawn with replacement, which is less work than the example's distinct ones."""
    rows, size, samples, classes = 960, 200, 512, 40_000
    matrix = lambda *shape: torch.empty(*shape).uniform_(-0.07, 0.07).requires_grad_()
    hidden, right_weights, right_bias = matrix(rows, size), matrix(rows, size), matrix(rows)
    weights, bias, right = matrix(samples, size), matrix(samples), torch.randint(0, classes, (rows,))
    range_log, zeros = torch.log(torch.tensor(classes + 1.0)), torch.zeros(rows, dtype=torch.long)
    expected = lambda ids: torch.log(samples * torch.log1p(1 / (ids + 1.0)) / range_log)

    def step():
        for leaf in (hidden, right_weights, right_bias, weights, bias):
            leaf.grad = None
        drawn = (torch.exp(torch.rand(samples) * range_log) - 1).long()
        right_scores = (hidden * right_weights).sum(1) + right_bias - expected(right)
        scores = hidden @ weights.t() + (bias - expected(drawn))
        scores = scores.masked_fill(right.unsqueeze(1) == drawn, -1e37)
        F.cross_entropy(torch.cat([right_scores.unsqueeze(1), scores], 1), zeros).backward()
    return step


CASES = {
    "language_model": language_model,
    "gru_10": lambda: layers(nn.GRU, 10),
    "gru_15": lambda: layers(nn.GRU, 15),
    "lstm_10": lambda: layers(nn.LSTM, 10),
    "lstm_15": lambda: layers(nn.LSTM, 15),
    "attention_decoder": attention_decoder,
    "sampled_softmax": sampled_softmax,
}
SECONDS = 1.0


def measure(step):
    times, began = [], time.perf_counter()
    while len(times) < 10 or time.perf_counter() - began < SECONDS:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times[len(times) // 5:]) * 1e3


def main():
    binary, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    only = sys.argv[3:] or CASES
    print(f"{'case':20} {'windlass ms':>12} {'PyTorch ms':>12} {'ratio':>7}")
    for name in only:
        step, ours, theirs = CASES[name](), [], []
        for _ in range(rounds):
            ours.append(float(subprocess.check_output([binary, name, str(SECONDS)])))
            theirs.append(measure(step))
        ratio = statistics.median(b / a for a, b in zip(ours, theirs))
        print(f"{name:20} {statistics.median(ours):12.2f} {statistics.median(theirs):12.2f} {ratio:7.2f}", flush=True)


if __name__ == "__main__":
    main()
