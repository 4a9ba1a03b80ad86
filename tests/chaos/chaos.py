"""One run of a seed: makes the faults of the schedule, one after the other, and checks what must hold."""
import collections
import shutil
import signal
import statistics
import time

import schedule
import verdicts
from job import BOUNDS_S, OPERATION_BOUND_S, Job
from world import Lateness, World

TICK_S = 0.02
SETTLE_S = 25
GO_ON_S = 60
END_S = 40
QUIET_S = 30
STALL_BAR_S = 1.0
BAR_FACTOR = 2           # a run fails beyond twice the bar, and what the machine was late
CHECK_LEAKS_EVERY = 8    # faults
DESCRIPTORS_MORE = 2
PRIVATE_MORE_KIB = 32 << 10
GOES_ON_SMALLER = 0.5    # of the jobs that lost ranks meet the next fault as they are
STARTS_AGAIN = 0.1       # of the others
AFTER_STOP_S = 1.5
STARVED_S = 1.5          # a machine that wakes a thread so late may have stopped daemons for as long as the patience
COMPLETE_NODES = 9       # more nodes are not all connected, but on demand
ALLOWED_EXITS = {0, 3, 4}


class Violation(Exception):
    """Something that must hold does not."""


class Contradiction(Violation):
    """Survivors were told different things. That is wrong however late the machine was."""


def shape_of(node_count, ranks):
    nodes = "abcdefghijklmnopqrstuvwxyz"[:node_count]
    return schedule.Shape(nodes, {"all": [node for node in nodes for _ in range(ranks)], "pair": [nodes[0], nodes[-1]] * max(1, ranks // 2),
                                  "local": [nodes[1 % len(nodes)]] * 2})


class Chaos:
    def __init__(self, seed, nodes=3, ranks=2, quick=False, kinds=None, slow=1, say=print, **options):
        self.seed, self.quick, self.kinds, self.say = seed, quick, kinds, say
        self.factor = BAR_FACTOR * slow
        self.shape = shape_of(nodes, ranks)
        self.began = time.monotonic()
        self.options = options
        self.reports = collections.defaultdict(list)   # by communicator: FAILED events
        self.shrunk = collections.defaultdict(list)    # by communicator: SHRUNK events
        self.another = []                              # communicators that ranks could not form or use: (job, event)
        self.in_vain = set()                           # jobs in which a rank waited in vain, as another one was refused
        self.judged = set()
        self.told, self.stalls, self.recovered, self.formed = (collections.defaultdict(list) for _ in range(4))
        self.counts = collections.Counter()
        self.baseline = {}                             # by daemon's pid
        self.memory = collections.defaultdict(list)
        self.faults = []
        self.ages = {}

    def log(self, text):
        self.say(f"{time.monotonic() - self.began:8.2f}  {text}")

    def fail(self, text):
        raise Violation(text)

    # --- Waiting, and what is looked at meanwhile

    def tick(self):
        self.world.keep_cut()
        for job in [*self.jobs, self.extra]:
            for rank in job.ranks:
                for event in rank.take_events():
                    self.take(job, rank, event)
                self.check_call(job, rank)
                self.check_exit(job, rank)
        for name, process in self.world.daemons.items():
            if process.poll() is not None and process.pid not in self.world.expected_ends:
                self.fail("\n".join(self.world.crashes()))

    def wait_s(self, seconds):
        end = time.monotonic() + seconds
        while True:
            self.tick()
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(TICK_S, left))

    def wait_for(self, condition, within_s, what):
        end = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > end:
                self.check_verdicts()
                self.fail(f"{what() if callable(what) else what}: not within {within_s} s")
            self.wait_s(TICK_S)

    def take(self, job, rank, event):
        self.counts[event.kind] += 1
        if event.kind == "FAILED":
            self.reports[event.comm].append(event)
            self.log(f"  {event.comm} rank {event['rank']}: {event.result} in {event.call} at step {event.step}, lost {event.lost}: {event.text}")
        elif event.kind == "ANOTHER":
            self.another.append((job.name, event))
        elif event.kind == "SHRUNK":
            self.shrunk[event.comm].append(event)
        elif event.kind == "WORKS" and rank.last("FAILED"):
            self.recovered[""].append(event.t - rank.last("FAILED").at)
        elif event.kind == "EXIT":
            self.counts["operations"] += event.operations
            self.counts["elements"] += event.elements
        elif event.kind == "WRONG":
            self.fail(f"{event.comm} rank {event['rank']}: wrong: {event.text}")
        elif event.kind == "UNFORMED" and job.absent and event.result in ("DAEMON_LOST", "NODE_LOST"):
            pass  # its commd was killed, or that of another rank; it is started again
        elif event.kind == "UNFORMED":
            self.fail(f"{event.comm} rank {event['rank']} was not formed: {event.result} {event.text}")
        elif event.kind == "ENDED":
            self.log(f"  {event.comm} rank {event['rank']} cannot go on: {event.result} {event.text}")
            if "minority" not in event.text and event.result not in ("RANK_LOST", "DAEMON_LOST"):
                self.fail(f"{event.comm} rank {event['rank']}: comm_shrink failed: {event.result} {event.text}")

    def check_call(self, job, rank):
        call = rank.call() if rank.alive else None
        if call is None:
            return
        name, age_s = call
        if name not in BOUNDS_S:
            self.ages[job.name] = max(self.ages.get(job.name, 0), age_s)
        bound_s = BOUNDS_S.get(name, OPERATION_BOUND_S)
        if age_s > bound_s:
            self.fail(f"{job.title} rank {rank.rank} on {rank.node}: {name} has not ended after {age_s:.1f} s (bound: {bound_s} s)")

    def check_exit(self, job, rank):
        code = rank.process.poll()
        if code is not None and not rank.killed and code not in ALLOWED_EXITS:
            self.fail(f"{job.title} rank {rank.rank} on {rank.node} ended with {code}: {rank.output.read_text(errors='replace')[-1500:]}")

    # --- One fault

    def do(self, verb, arguments):
        if verb == "start_extra":
            self.extra.start(*arguments)
        elif verb == "complete_extra":
            self.wait_for(lambda: len(self.extra.living()) <= len(self.extra.layout) - 2, GO_ON_S, "the rank of the killed commd does not end")
            # Otherwise nodes that still believe in the killed process may take the job for complete, and it fails.
            self.wait_for(lambda: self.world.whole() and self.world.knows_restarted(*arguments), SETTLE_S, "a restarted commd is not known")
            self.come_again()
        elif verb.endswith("_rank"):
            job, rank = next(job for job in self.jobs if job.name == arguments[0]), arguments[1]
            rank = job.ranks[rank]
            if verb == "kill_rank" and rank.alive:
                rank.killed = True
                rank.process.kill()
            elif verb != "kill_rank":
                rank.signal({"stop_rank": signal.SIGSTOP, "continue_rank": signal.SIGCONT, "abort_rank": signal.SIGUSR2}[verb])
        else:
            getattr(self.world, verb)(*arguments)

    def come_again(self):
        """A node that is seen lost while the job forms ends it for all; then all ranks come again. A commd that is back sooner is not seen lost."""
        if any(rank.last("UNFORMED") and rank.last("UNFORMED").result == "NODE_LOST" for rank in self.extra.ranks):
            self.wait_for(lambda: not self.extra.living(), GO_ON_S, "not all ranks are told that a node is lost while their job forms")
            self.extra.start()
        else:
            self.extra.complete()

    def make(self, index, fault):
        self.lateness.take()
        self.ages = {}
        calm = time.monotonic()
        self.wait_s(0.5)
        calm_s = max([0, *self.ages.values()])
        harmed = {job.name: job.living() for job in self.jobs if fault.harms(job.name, {rank.rank: rank.node for rank in job.living()})}
        self.ages = {}
        began = time.monotonic()
        self.faults.append((began - self.began, index, fault))
        self.log(f"fault {index}: {fault}")
        for at, verb, *arguments in fault.steps:
            self.wait_s(max(0, began + at - time.monotonic()))
            self.do(verb, arguments)
        # Nodes that have waited for a stopped daemon for long may give it up shortly after it goes on.
        self.wait_s(AFTER_STOP_S if not fault.harmless and any(verb == "continue_daemon" for _, verb, *_ in fault.steps) else 0.1)
        self.settle()
        late_s = self.lateness.take()
        self.check_extra(fault)
        disturbed = self.world.take_disturbed()
        if disturbed or late_s > STARVED_S:
            self.log(f"  {'a stopped daemon was woken by others' if disturbed else f'the machine was {late_s:.2f} s late'}: who was lost, and when, is not judged")
            self.another.clear()
        else:
            self.check_failures(fault, harmed, began)
            self.check_told(fault, harmed, began, late_s)
            self.check_stalls(fault, harmed, calm_s, late_s)
            self.check_partition(fault, harmed, began)
        self.check_verdicts()
        crashes = self.world.crashes()
        if crashes:
            self.fail("\n".join(crashes))

    def check_extra(self, fault):
        """The job that began during the fault works, and ends."""
        if any(verb == "start_extra" for _, verb, *_ in fault.steps) and not self.extra.works():
            self.fail(f"{self.extra.title} does not work: {self.state(self.extra)}")
        self.end([self.extra])

    def settle(self):
        self.wait_for(self.world.whole, SETTLE_S, lambda: "the cluster does not settle: " + "; ".join(
            f"{name}: {self.world.links(name)}" for name in self.world.members))
        before = {rank: rank.calls() for job in [*self.jobs, self.extra] for rank in job.ranks}
        for job in [*self.jobs, self.extra]:
            self.wait_for(lambda: not job.living() or job.works() and all(rank.calls() > before[rank] + 1 for rank in job.living()), GO_ON_S,
                          lambda: f"{job.title} does not go on: {self.state(job)}")

    def state(self, job):
        return "; ".join(f"rank {rank.rank} on {rank.node}: {rank.call() if rank.alive else 'ended with %s' % rank.process.poll()}, last "
                         f"{dict(rank.events[-1]) if rank.events else ''}" for rank in job.ranks)

    def check_failures(self, fault, harmed, began):
        for comm, reports in self.reports.items():
            for event in reports:
                if event.at >= began and event.comm.split(".")[0] not in harmed:
                    self.fail(f"{fault.kind} failed {comm}, which it must not harm: rank {event['rank']}: {event.result} {event.text}")
                if event.at >= began and event.result == "TIMED_OUT":
                    self.fail(f"an operation of {comm} timed out: rank {event['rank']}: {event.text}")

        self.in_vain = set()
        refused = {event.text.split('"')[1] for _, event in self.another if event.result == "SHUTTING_DOWN" and '"' in event.text}
        for name, event in self.another:
            # A draining node takes no new communicators. A rank that comes after the drain waits in vain for one that was refused.
            drains = "drain" in fault.kind and (event.result == "SHUTTING_DOWN" or event.result == "TIMED_OUT" and event.text.split('"')[1] in refused)
            if drains and event.result == "TIMED_OUT":
                self.in_vain.add(name)
            if name not in harmed and not drains:
                self.fail(f"{fault.kind} failed another communicator of {event.comm}, which it must not harm: rank {event['rank']}: {event.result} {event.text}")
        self.another.clear()

    def check_told(self, fault, harmed, began, late_s):
        if fault.bar_s is None:
            return
        for name, ranks in harmed.items():
            for rank in ranks:
                event = next((event for event in rank.events if event.kind == "FAILED" and event.at >= began), None)
                if rank.killed or rank.process.poll() == 0 or rank.node in fault.paused:
                    continue
                if event is None:
                    self.fail(f"{name} rank {rank.rank} on {rank.node} was not told of {fault.kind}: {dict(rank.events[-1])}")
                told_s = event.at - max(began, event.began)
                self.told[fault.kind.split(" ")[0]].append(told_s)
                if told_s > self.factor * (fault.bar_s + late_s):
                    self.fail(f"{name} rank {rank.rank} on {rank.node} was told of {fault.kind} after {told_s:.2f} s (bar {fault.bar_s} s, the machine was {late_s:.2f} s late)")

    def check_partition(self, fault, harmed, began):
        """The right side goes on."""
        if fault.kind not in ("long-partition", "long-hole", "long-down"):
            return
        for name, ranks in harmed.items():
            first = [next(event for event in rank.events if event.kind == "FAILED" and event.at >= began) for rank in ranks]
            for text in verdicts.of_partition(first[0].comm, first, {rank.rank: rank.node for rank in ranks}, fault.pairs):
                self.fail(text)

    def check_stalls(self, fault, harmed, calm_s, late_s):
        for name, age_s in self.ages.items():
            if name in harmed or name in self.in_vain:
                continue  # the other ranks' next operation waited for the one that waits in vain
            stall_s = age_s - fault.outage_s
            self.stalls[fault.kind.split(" ")[0]].append(stall_s)
            if stall_s > STALL_BAR_S:
                self.log(f"  {name} waited {stall_s:.2f} s longer than the outage")
            if stall_s > self.factor * (STALL_BAR_S + late_s) + calm_s:
                self.fail(f"an operation of {name} waited {stall_s:.2f} s longer than {fault.kind} lasted ({fault.outage_s} s; the machine was {late_s:.2f} s late)")

    def check_verdicts(self):
        for comm in sorted(set(self.reports) - self.judged):
            for text in verdicts.of_one(comm, self.reports[comm]):
                raise Contradiction(text)
            title, generation = comm.rsplit("/", 1)
            after = f"{title}/{int(generation) + 1}"
            if self.shrunk[after]:
                for text in verdicts.of_next(after, self.reports[comm], self.shrunk[after]):
                    self.fail(text)
            self.judged.add(comm)

    # --- Between faults

    def start(self, jobs):
        began = time.monotonic()
        for job in jobs:
            job.start()
        for job in jobs:
            self.wait_for(job.works, GO_ON_S, lambda: f"{job.title} does not begin: {self.state(job)}")
            self.formed[""].append(max(rank.last("FORMED").t for rank in job.ranks) - began)

    def end(self, jobs):
        for job in jobs:
            job.end()
        for job in jobs:
            self.wait_for(lambda: not job.living(), END_S, lambda: f"{job.title} does not end: {self.state(job)}")
            self.tick()

    def renew(self):
        """Starts the jobs that lost ranks again."""
        again = [job for job in self.jobs if len(job.living()) < len(job.layout)]
        self.end(again)
        self.start(again)

    def mend(self, index):
        """Jobs that lost ranks go on without them, or are started again."""
        draw, again = schedule.choices(self.seed, index), []
        for job in self.jobs:
            smaller, other = draw.random() < GOES_ON_SMALLER, draw.random() < STARTS_AGAIN
            whole = len(job.living()) == len(job.layout)
            if (whole and other) or (not whole and not (smaller and len(job.living()) > 1)):
                again.append(job)
        self.end(again)
        self.start(again)

    def check_leaks(self):
        """Ends all jobs. Then daemons must hold what they held in the beginning."""
        self.end(self.jobs)
        world = self.world
        for name in world.members:
            self.wait_for(lambda: not world.rooms(name), QUIET_S, lambda: f"{name} holds what nobody uses: {world.rooms(name)}")
            now = (world.descriptors(name), world.private_kib(name), world.links(name))
            first = self.baseline.setdefault(world.pid(name), now)
            self.memory[f"{name} {world.pid(name)}"].append(now[1])
            if now[0] > first[0] + DESCRIPTORS_MORE:
                self.fail(f"{name} has {now[0]} descriptors, in the beginning {first[0]}")
            if now[1] > first[1] + PRIVATE_MORE_KIB * self.factor:
                self.fail(f"{name} has {now[1]} KiB of memory, in the beginning {first[1]}")
            if now[2] != first[2] and len(world.members) <= COMPLETE_NODES:
                self.fail(f"{name} has the links {now[2]}, in the beginning {first[2]}")
        self.start(self.jobs)

    def begin(self):
        """Starts the daemons and the jobs."""
        self.lateness = Lateness()
        self.world = World(self.shape.nodes, **self.options)
        most = 1 << 18 if self.quick else 4 << 20
        self.jobs = [Job(self.world, name, layout, self.seed % 1000003, most if name != "all" else most // 2, 2000)
                     for name, layout in self.shape.jobs.items()]
        self.extra = Job(self.world, "extra", self.shape.nodes, self.seed % 1000003, 1 << 18, 2000)
        self.start(self.jobs)
        self.wait_s(1)
        self.check_leaks()

    def end_all(self):
        """Ends the jobs and the daemons in order."""
        self.check_leaks()
        self.end(self.jobs)
        self.end_daemons()

    def run(self, indices, seconds):
        """Makes the faults of these numbers, until the time has passed. Raises Violation."""
        self.begin()
        for number, index in enumerate(indices, 1):
            if time.monotonic() - self.began > seconds:
                break
            self.make(index, schedule.fault(self.seed, index, self.shape, self.quick, self.kinds))
            self.mend(index)
            if number % CHECK_LEAKS_EVERY == 0:
                self.check_leaks()
        self.end_all()

    def end_daemons(self):
        for name in self.world.members:
            process = self.world.daemons[name]
            self.world.expected_ends.add(process.pid)
            process.terminate()
        for name in self.world.members:
            code = self.world.daemons[name].wait(timeout=30)
            if code != 0:
                self.fail(f"commd of {name} ended with {code}\n{self.world.log(name)[-4000:]}")
        crashes = self.world.crashes()
        if crashes:
            self.fail("\n".join(crashes))

    def close(self):
        if hasattr(self, "lateness"):
            self.lateness.close()
        for job in [*getattr(self, "jobs", []), *([self.extra] if hasattr(self, "extra") else [])]:
            job.kill()
        if hasattr(self, "world"):
            self.world.close()

    def keep_logs(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path in [*self.world.folder.glob("*.log"), *self.world.folder.glob("ranks/*.out")]:
            shutil.copy(path, folder)

    # --- The report

    def summary(self):
        kinds = collections.Counter(fault.kind.split(" ")[0] for _, _, fault in self.faults)
        lines = [f"{len(self.faults)} faults: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())),
                 f"{self.counts['operations']} operations and {self.counts['elements']} elements checked of ranks that ended; {self.counts['FAILED']} failures told, "
                 f"{self.counts['SHRUNK']} ranks shrunk"]
        for title, table in (("told after", self.told), ("waited longer than the outage", self.stalls), ("from the failure to the next operation's end", self.recovered),
                             ("formed after", self.formed)):
            for kind, values in sorted(table.items()):
                lines.append(f"{title}{' of ' + kind if kind else ''}: {spread(values)}")
        for name, values in self.memory.items():
            if len(values) > 1:
                lines.append(f"KiB of commd {name}: {' '.join(str(each) for each in values)}")
        return lines


def spread(values):
    values = sorted(values)
    return f"{len(values)} times, median {statistics.median(values):.3f} s, 90 % {values[int(len(values) * 0.9)]:.3f} s, worst {values[-1]:.3f} s"
