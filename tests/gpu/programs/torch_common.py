# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""What the PyTorch programs share: determinism, models, and digests of tensors."""

import datetime
import os
import socket

import program

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8") # read when cuBLAS starts

import torch # noqa: E402

GIB = 1 << 30
FULL_DIGEST_BYTES = 4 * GIB # beyond that, reading everything back would take longer than the program


def make_deterministic(seed=1):
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x):
        return x + 0.1 * torch.nn.functional.gelu(self.linear(self.norm(x)))


def mlp(width, layers):
    """On the current GPU."""
    with torch.device("cuda"):
        return torch.nn.Sequential(*[Block(width) for _ in range(layers)])


class DecoderBlock(torch.nn.Module):
    def __init__(self, width, heads, **where):
        super().__init__()
        self.heads = heads
        self.norm, self.wide_norm = (torch.nn.LayerNorm(width, **where) for _ in range(2))
        self.attended, self.out = torch.nn.Linear(width, 3 * width, **where), torch.nn.Linear(width, width, **where)
        self.up, self.down = torch.nn.Linear(width, 4 * width, **where), torch.nn.Linear(4 * width, width, **where)

    def forward(self, x, cache, position):
        query, key, value = (each.unflatten(2, (self.heads, -1)).transpose(1, 2)
                             for each in self.attended(self.norm(x)).chunk(3, 2))
        rows = torch.arange(position, position + x.shape[1], device=x.device)
        if cache is not None:
            cache[0, :, :, position:position + x.shape[1]] = key
            cache[1, :, :, position:position + x.shape[1]] = value
            key, value = cache
        later = torch.arange(key.shape[2], device=x.device) > rows[:, None]
        scores = (query @ key.transpose(2, 3) / query.shape[3] ** 0.5).masked_fill(later, float("-inf"))
        x = x + self.out((scores.softmax(3) @ value).transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.gelu(self.up(self.wide_norm(x))))


class Decoder(torch.nn.Module):
    """A small language model. `where` is its device and type."""

    def __init__(self, width, layers, vocabulary, heads, **where):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, width, **where)
        self.blocks = torch.nn.ModuleList(DecoderBlock(width, heads, **where) for _ in range(layers))
        self.head = torch.nn.Linear(width, vocabulary, bias=False, **where)

    def forward(self, tokens, cache=None, position=0):
        """The scores of each token's successor. `cache` has, by layer, the keys and values of what is before `position`,
        where the tokens begin, and gets theirs."""
        x = self.embedding(tokens)
        for number, block in enumerate(self.blocks):
            x = block(x, None if cache is None else cache[number], position)
        return self.head(x)


def words_of(tensor):
    """The tensor's bytes as integers."""
    flat = tensor.detach().contiguous().view(-1)
    return flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])


def weighted_sum(words, piece=1 << 24):
    """An integer sum modulo 2^64 to which each word contributes by its place: the same in any order of adding, and
    another one whenever one word is another."""
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for begin in range(0, words.numel(), piece):
        part = words[begin:begin + piece].to(torch.int64)
        places = torch.arange(begin, begin + part.numel(), device=words.device)
        total += (part * (2 * places + 1)).sum()
    return int(total)


def add_tensors(digest, tensors):
    """All bytes of all tensors; beyond FULL_DIGEST_BYTES, a sum over each that every bit changes."""
    tensors = list(tensors)
    in_full = sum(t.numel() * t.element_size() for t in tensors) <= FULL_DIGEST_BYTES
    for tensor in tensors:
        digest.add(words_of(tensor).cpu().numpy() if in_full else f"{weighted_sum(words_of(tensor))};")


def learn(model, optimizer, inputs, **how):
    """A step of training, which clears the gradients as `how` says. Returns the loss."""
    loss = (model(inputs) - inputs.roll(1, 1)).square().mean()
    optimizer.zero_grad(**how)
    loss.backward()
    optimizer.step()
    return loss.detach()


def run_ranks(work, arguments):
    """Runs work(rank, arguments) in as many processes as --ranks says, which meet at a port that nobody uses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(found.getsockname()[1]))
    torch.multiprocessing.spawn(work, args=(arguments,), nprocs=arguments.ranks)


def join_ranks(rank, ranks, device, backend="nccl"):
    """Takes `device`, joins the other ranks by `backend`, and returns their group that works on the CPU."""
    import torch.distributed as dist # not every PyTorch has it

    torch.cuda.set_device(device)
    patience = datetime.timedelta(minutes=10)
    bound = {"device_id": torch.device("cuda", device)} if backend == "nccl" else {}
    dist.init_process_group(backend, rank=rank, world_size=ranks, timeout=patience, **bound)
    make_deterministic()
    return dist.new_group(backend="gloo", timeout=patience)


def paced_ranks(arguments, group):
    """program.paced() for a rank: with --until, all ranks end with the same step. `group` works on the CPU."""
    import torch.distributed as dist # not every PyTorch has it

    def agreed(is_over):
        said = [is_over]
        dist.broadcast_object_list(said, group=group)
        return said[0]

    return program.paced(arguments, agreed)


def finish_ranks(digest, rank, ranks, group):
    """Has rank 0 print the digest of all ranks' digests, and ends the process group. `group` works on the CPU."""
    import torch.distributed as dist # not every PyTorch has it
    digests = [None] * ranks
    dist.all_gather_object(digests, digest.state.hexdigest(), group=group)
    if rank == 0:
        whole = program.Digest()
        for each in digests:
            whole.add(each)
        whole.finish()
    dist.barrier(group=group)
    dist.destroy_process_group()
