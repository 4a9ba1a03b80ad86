"""Which faults come, and when: a pure function of the seed and the shape of the cluster. Fault number i does not depend on the others, so a run may
make some of them alone.

A fault is a list of steps (seconds after its begin, verb, arguments) for world.World, and what it may harm.
"""
import dataclasses
import random

PATIENCE_S = 4.0
SHORT_S = (0.2, 2.0)  # an outage of this length fails nothing
LONG_S = (7.0, 9.0)   # longer than the patience, and than what nodes need to agree
RANK_BAR_S, DAEMON_BAR_S, SILENT_BAR_S, PARTITION_BAR_S = 0.1, 1.0, 4.5, 5.0


@dataclasses.dataclass
class Shape:
    """The nodes' names, and the jobs: by name, the node of each rank."""
    nodes: str
    jobs: dict


@dataclasses.dataclass
class Fault:
    kind: str
    steps: list
    # What it may harm. A job fails only if it has a rank in `ranks`, a rank on one of `nodes`, or ranks on both nodes of one of `pairs`.
    ranks: list = dataclasses.field(default_factory=list)  # (job, rank)
    nodes: list = dataclasses.field(default_factory=list)
    pairs: list = dataclasses.field(default_factory=list)
    bar_s: float = None    # survivors of the harmed jobs are told within this time; None: they may not be told at all
    dead: list = dataclasses.field(default_factory=list)   # nodes whose own ranks cannot go on
    paused: list = dataclasses.field(default_factory=list)  # nodes whose own ranks are told when they can read it
    outage_s: float = 0.0  # how long operations may wait because of it

    @property
    def harmless(self):
        return not (self.ranks or self.nodes or self.pairs)

    @property
    def ends_s(self):
        return max(at for at, *_ in self.steps)

    def harms(self, job, node_of):
        """node_of: by living rank of the job, its node."""
        nodes = set(node_of.values())
        return any(name == job and rank in node_of for name, rank in self.ranks) or any(node in nodes for node in self.nodes) or \
            any(a in nodes and b in nodes for a, b in self.pairs)

    def __str__(self):
        return f"{self.kind}: " + "; ".join(f"{at:.2f} s {verb} {' '.join(str(each) for each in arguments)}".strip() for at, verb, *arguments in self.steps)


def kill_rank(draw, shape):
    job = draw.choice(sorted(shape.jobs))
    rank = draw.randrange(len(shape.jobs[job]))
    return Fault("kill-rank", [(0, "kill_rank", job, rank)], ranks=[(job, rank)], bar_s=RANK_BAR_S)


def stop_rank(draw, shape):
    job = draw.choice(sorted(shape.jobs))
    rank, hold = draw.randrange(len(shape.jobs[job])), round(draw.uniform(0.2, 6), 2)
    return Fault("stop-rank", [(0, "stop_rank", job, rank), (hold, "continue_rank", job, rank)], outage_s=hold)


def kill_daemon(draw, shape):
    node = draw.choice(shape.nodes)
    return Fault("kill-daemon", [(0, "kill_daemon", node), (round(draw.uniform(0.1, 4), 2), "start_daemon", node)],
                 nodes=[node], dead=[node], bar_s=DAEMON_BAR_S)


def short_stop_daemon(draw, shape):
    node, hold = draw.choice(shape.nodes), round(draw.uniform(*SHORT_S), 2)
    return Fault("short-stop-daemon", [(0, "stop_daemon", node), (hold, "continue_daemon", node)], outage_s=hold)


def long_stop_daemon(draw, shape):
    node, hold = draw.choice(shape.nodes), round(draw.uniform(*LONG_S), 2)
    return Fault("long-stop-daemon", [(0, "stop_daemon", node), (hold, "continue_daemon", node)], nodes=[node], dead=[node], bar_s=SILENT_BAR_S)


def pause_host(draw, shape):
    """All processes of a node stand still, as if its virtual machine was paused. When they go on, the others have gone on without them."""
    node, hold = draw.choice(shape.nodes), round(draw.uniform(*LONG_S), 2)
    ranks = [(job, rank) for job, layout in shape.jobs.items() for rank, each in enumerate(layout) if each == node]
    steps = [(0, "stop_daemon", node), *((0, "stop_rank", *each) for each in ranks)]
    steps += [(hold, "continue_daemon", node), *((hold, "continue_rank", *each) for each in ranks)]
    return Fault("pause-host", steps, nodes=[node], dead=[node], paused=[node], bar_s=SILENT_BAR_S)


def middle_stop_daemon(draw, shape):
    """Clients of the daemon, and the other nodes, may give it up or not."""
    node, hold = draw.choice(shape.nodes), round(draw.uniform(2.6, 4.4), 2)
    return Fault("middle-stop-daemon", [(0, "stop_daemon", node), (hold, "continue_daemon", node)], nodes=[node], dead=[node])


def short_hole(draw, shape):
    node, hold = draw.choice(shape.nodes), round(draw.uniform(*SHORT_S), 2)
    return Fault("short-hole", [(0, "hole", node), (hold, "fill", node)], outage_s=hold)


def long_hole(draw, shape):
    node, hold = draw.choice(shape.nodes), round(draw.uniform(*LONG_S), 2)
    return Fault("long-hole", [(0, "hole", node), (hold, "fill", node)], pairs=pairs_of(node, shape), bar_s=PARTITION_BAR_S)


def short_down(draw, shape):
    node, hold = draw.choice(shape.nodes), round(draw.uniform(*SHORT_S), 2)
    return Fault("short-down", [(0, "link_down", node), (hold, "link_up", node)], outage_s=hold)


def long_down(draw, shape):
    node, hold = draw.choice(shape.nodes), round(draw.uniform(*LONG_S), 2)
    return Fault("long-down", [(0, "link_down", node), (hold, "link_up", node)], pairs=pairs_of(node, shape), bar_s=PARTITION_BAR_S)


def flapping(draw, shape):
    node, at, steps = draw.choice(shape.nodes), 0.0, []
    for _ in range(draw.randrange(2, 6)):
        steps.append((round(at, 2), "link_down", node))
        at += draw.uniform(0.1, 0.6)
        steps.append((round(at, 2), "link_up", node))
        at += draw.uniform(0.5, 1.5)
    return Fault("flapping", steps, outage_s=round(at, 2))


def two_losses(draw, shape):
    """The second one comes while the survivors of the first agree, shrink or run again."""
    first, second = (draw.choice([kill_rank, kill_daemon])(draw, shape) for _ in range(2))
    late = draw.choice([0, 0.002, 0.01, 0.03, 0.1, 0.3, 0.7])
    steps = sorted(first.steps + [(round(at + late, 3), *step) for at, *step in second.steps], key=lambda step: step[0])
    return Fault("two-losses", steps, ranks=first.ranks + second.ranks, nodes=first.nodes + second.nodes, dead=first.dead + second.dead,
                 bar_s=max(first.bar_s, second.bar_s) + late)


def all_daemons(draw, shape):
    """All daemons are killed, one after the other, and started again."""
    nodes, late = list(shape.nodes), draw.choice([0, 0.01, 0.2])
    draw.shuffle(nodes)
    steps = [(round(late * number, 2), "kill_daemon", node) for number, node in enumerate(nodes)]
    steps += [(round(2 + draw.uniform(0, 1), 2), "start_daemon", node) for node in nodes]
    return Fault("all-daemons", sorted(steps, key=lambda step: step[0]), nodes=nodes, dead=nodes, bar_s=DAEMON_BAR_S + late * len(nodes))


def form(draw, shape):
    """One more job begins during an outage."""
    outage = draw.choice([short_stop_daemon, short_hole, short_down, short_partition, short_one_way, move, lossy, narrow])(draw, shape)
    at = round(draw.uniform(0, outage.ends_s), 2)
    return Fault("form", sorted(outage.steps + [(at, "start_extra")], key=lambda step: step[0]), outage_s=outage.outage_s)


def form_again(draw, shape):
    """A job waits for a rank. Meanwhile one of its nodes is lost, and comes back with its rank. The others wait for both, or all are told and come again."""
    node, absent = draw.sample(list(shape.nodes), 2)
    at = round(draw.uniform(0, 1), 2)
    again = round(at + draw.uniform(0.2, 3), 2)
    return Fault("form-again", [(0, "start_extra", absent), (at, "kill_daemon", node), (again, "start_daemon", node), (again, "complete_extra", node)],
                 nodes=[node], dead=[node], bar_s=DAEMON_BAR_S + at)


def abort(draw, shape):
    """A rank ends the communicator for all. Nobody is lost."""
    job = draw.choice(sorted(shape.jobs))
    rank = draw.randrange(len(shape.jobs[job]))
    return Fault("abort", [(0, "abort_rank", job, rank)], ranks=[(job, rank)])


def pairs_of(node, shape):
    return [(node, each) for each in shape.nodes if each != node]


def two_sides(draw, shape):
    nodes = list(shape.nodes)
    draw.shuffle(nodes)
    cut = draw.randrange(1, len(nodes))
    return [(a, b) for a in sorted(nodes[:cut]) for b in sorted(nodes[cut:])]


def short_partition(draw, shape):
    pairs, hold = two_sides(draw, shape), round(draw.uniform(*SHORT_S), 2)
    return Fault("short-partition", [(0, "cut", *pairs, *[pair[::-1] for pair in pairs]), (hold, "uncut")], outage_s=hold)


def long_partition(draw, shape):
    pairs, hold = two_sides(draw, shape), round(draw.uniform(*LONG_S), 2)
    return Fault("long-partition", [(0, "cut", *pairs, *[pair[::-1] for pair in pairs]), (hold, "uncut")], pairs=pairs, bar_s=PARTITION_BAR_S)


def short_one_way(draw, shape):
    pair, hold = tuple(draw.sample(shape.nodes, 2)), round(draw.uniform(*SHORT_S), 2)
    return Fault("short-one-way", [(0, "cut", pair), (hold, "uncut")], outage_s=hold)


def long_one_way(draw, shape):
    """One direction between two nodes, or all that a node sends."""
    pair, hold = tuple(draw.sample(shape.nodes, 2)), round(draw.uniform(*LONG_S), 2)
    pairs = draw.choice([[pair], pairs_of(pair[0], shape)])
    return Fault("long-one-way", [(0, "cut", *pairs), (hold, "uncut")], pairs=pairs, bar_s=PARTITION_BAR_S)


def narrow(draw, shape):
    node = draw.choice(shape.nodes)
    return Fault("narrow", [(0, "mtu", node, 1500), (round(draw.uniform(2, 5), 2), "mtu", node, 9000)], outage_s=2.0)


def move(draw, shape):
    node = draw.choice(shape.nodes)
    return Fault("move", [(0, "move", node), (round(draw.uniform(3, 6), 2), "move_back", node)], outage_s=2.0)


def lossy(draw, shape):
    nodes = draw.choice([shape.nodes, draw.choice(shape.nodes)])
    percent, hold = draw.choice([1, 2, 5, 10]), round(draw.uniform(2, 6), 2)
    return Fault("lossy", [(0, "loss", nodes, percent), (hold, "loss", nodes, 0)], outage_s=hold)


def drain(draw, shape):
    node = draw.choice(shape.nodes)
    return Fault("drain", [(0, "drain", node, 60), (round(draw.uniform(0.5, 3), 2), "undrain", node)])


def drain_to_the_end(draw, shape):
    node = draw.choice(shape.nodes)
    return Fault("drain-to-the-end", [(0, "drain", node, 1), (3, "undrain", node)], nodes=[node])


def reload(draw, shape):
    hold = round(draw.uniform(1, 5), 2)
    return Fault("reload", [(0, "add_spare"), (hold, "remove_spare")])


SINGLE = {kill_rank: 4, stop_rank: 2, kill_daemon: 4, short_stop_daemon: 3, long_stop_daemon: 1, pause_host: 2, middle_stop_daemon: 1, short_hole: 4, long_hole: 2,
          short_down: 3, long_down: 1, flapping: 2, short_partition: 3, long_partition: 2, short_one_way: 3, long_one_way: 2, narrow: 2, move: 3, lossy: 3,
          drain: 1, drain_to_the_end: 1, reload: 2, two_losses: 4, all_daemons: 1, abort: 2, form: 4, form_again: 2}
QUICK = {kill_rank: 3, stop_rank: 1, kill_daemon: 3, short_stop_daemon: 2, short_hole: 3, short_down: 2, short_partition: 2, short_one_way: 2, narrow: 1,
         move: 1, lossy: 1, drain: 1, reload: 1, two_losses: 1, abort: 1, form: 1}
# These may come at once. Each changes other things than the others, and can be undone alone.
TOGETHER = [kill_rank, stop_rank, kill_daemon, short_stop_daemon, short_hole, short_down, lossy, narrow, drain]


def several(draw, shape):
    """Two or three faults at nearly the same time. Outages of the same length begin together, so no pair of nodes is apart for longer."""
    parts = [make(draw, shape) for make in draw.sample(TOGETHER, draw.choice([2, 2, 3]))]
    steps, late = [], 0.0
    for part in parts:
        late = 0.0 if part.outage_s else round(draw.uniform(0, 1), 2)
        steps += [(round(at + late, 2), *step) for at, *step in part.steps]
    bars = [part.bar_s for part in parts if part.bar_s]
    outage_s = sum(part.outage_s for part in parts)
    return Fault("several (" + ", ".join(part.kind for part in parts) + ")", sorted(steps, key=lambda step: step[0]),
                 ranks=[each for part in parts for each in part.ranks], nodes=[each for part in parts for each in part.nodes],
                 pairs=[each for part in parts for each in part.pairs], dead=[each for part in parts for each in part.dead],
                 bar_s=max(bars) + outage_s + 1 if bars else None, outage_s=outage_s)


# What may come on top of each other. Nobody can say in advance who is told what, and when; but survivors must agree.
WORST = [kill_rank, kill_daemon, abort, long_stop_daemon, pause_host, middle_stop_daemon, long_hole, long_down, long_partition, long_one_way, drain_to_the_end, flapping,
         lossy, move]


def worst(draw, shape):
    """Two or three faults, long ones as well, that overlap."""
    parts = [make(draw, shape) for make in draw.sample(WORST, draw.choice([2, 2, 3]))]
    steps = []
    for part in parts:
        late = draw.choice([0, draw.uniform(0, 0.1), draw.uniform(0, 5)])
        steps += [(round(at + late, 3), *step) for at, *step in part.steps]
    return Fault("worst (" + ", ".join(part.kind for part in parts) + ")", sorted(steps, key=lambda step: step[0]),
                 ranks=[each for part in parts for each in part.ranks], nodes=[each for part in parts for each in part.nodes] + list(shape.nodes),
                 dead=[each for part in parts for each in part.dead], outage_s=max(at for at, *_ in steps))


def fault(seed, index, shape, quick=False, kinds=None):
    """Returns fault number `index` of the seed. kinds: the names of the only kinds that are drawn."""
    draw = random.Random(f"{seed}/{index}")
    weights = {make: weight for make, weight in (QUICK if quick else ALL).items() if not kinds or name_of(make) in kinds}
    return draw.choices(list(weights), list(weights.values()))[0](draw, shape)


def name_of(make):
    return make.__name__.replace("_", "-")


ALL = {**SINGLE, several: 8, worst: 6}
KINDS = [name_of(make) for make in ALL]


def choices(seed, index):
    """Returns the draw for what the harness does after fault number `index`."""
    return random.Random(f"{seed}/{index}/after")
