"""The list of attacks: how each runs, and what it must show."""
import re

QUICK_S = 0.5  # how long an attack lasts in `make test`
FULL_S = 5
PATIENCE_S = 10  # a job with an honest node may wait so long for its first communicator
SILENCE = "nobody says"  # how the fault of an attack that nobody has noticed begins
NOT_TOLD = "the attacker was told"  # and of one that commd has not refused as it must
AT_ONCE = ("control", "hello", "second_control", "ack_unsent", "stream_holes")  # lies for which commd ends the connection before a job can form


def common_faults(outcome):
    found = [outcome.lost] if outcome.lost else []
    if outcome.newcomer_failure:
        found.append(f"a newcomer: {outcome.newcomer_failure}")
    if outcome.errors:
        found.append(f"the attack itself: {outcome.errors[0][-300:]}")
    return found


class Local:
    """An attack on node a, by processes of one user.

      name         module.function
      processes    how many attack at once
      expects      commd must answer with one of these statuses; empty: commd need not refuse anything
      quick        `make test` runs it
      freeze       node b is stopped for 1.5 s meanwhile
      forbids      what the attacker must not find
      limited      the attacker and commd are in memory cgroups of their own
      log_forbids  what no line of the log may say
    """

    nodes = "ab"

    def __init__(self, name, processes, expects=(), quick=True, freeze=False, forbids=(), limited=False, log_forbids=""):
        self.title, self.processes, self.expects, self.quick, self.freeze = name, processes, expects, quick, freeze
        self.forbids, self.limited, self.log_forbids = forbids, limited, log_forbids

    def run(self, arena, seconds):
        return arena.run(arena.local(self.title, self.processes, self.limited), seconds, self.freeze)

    def run_control(self, arena, seconds):
        """Runs as many processes that only use processor time."""
        return arena.run(arena.burners(self.processes), seconds, self.freeze)

    def faults(self, arena, outcome):
        found = common_faults(outcome)
        if self.expects and not set(self.expects) & set(outcome.counts):
            found.append(f"{NOT_TOLD} {outcome.counts or 'nothing'}, not {' or '.join(self.expects)}")
        found += [f"the attacker found: {each}" for each in self.forbids if each in outcome.counts]
        if self.log_forbids and re.search(self.log_forbids, arena.cluster.log("a"), re.M):
            found.append(f"the log says {self.log_forbids}")
        return found


class Node:
    """An attack by node c on other nodes.

      lie   the lie of node c (hostile_commd.c)
      kind  of the job that runs meanwhile (job.py)
      says  what node a must say of node c, or what the job must be told
      job   the nodes of the job's two ranks; a job without node c must lose nothing
    """

    nodes = "abc"
    processes = 2

    def __init__(self, lie, kind, says="", quick=False, job="ac"):
        self.title = f"node.{lie}" + ("" if "c" in job else "_of_others")
        self.lie, self.kind, self.says, self.quick, self.job = lie, kind, says, quick, job

    def run(self, arena, seconds):
        patience = 0 if self.lie.startswith(AT_ONCE) else PATIENCE_S
        return arena.run(arena.node(self.lie, self.kind, self.job, patience), seconds)

    def run_control(self, arena, seconds):
        """Runs the same job with honest nodes. Beside it, a process uses processor time as the lying node's commd does."""
        return arena.run(arena.beside_burner(arena.node("", self.kind, self.job, PATIENCE_S)), seconds)

    def faults(self, arena, outcome):
        found = common_faults(outcome)
        told = set(outcome.counts) - {"formed", "TIMED_OUT"}  # the rank that forms last may wait for a partner that has ended
        if "c" not in self.job and (told or not outcome.counts.get("formed")):
            found.append(f"a job of others formed {outcome.counts.get('formed', 0)} times and was told {outcome.texts}")
        said = "" if outcome.lost else "\n".join([arena.known_of_hostile(), *outcome.counts, *outcome.texts.values()])
        if not outcome.lost and not re.search(self.says, said):
            found.append(f"{SILENCE} \"{self.says}\": {said[-1000:]}")
        return found


LOCAL = [
    Local("sessions.without_hello", 1, ("LIMIT", "TIMED_OUT")),
    Local("sessions.with_hello", 1, ("LIMIT",), False),  # how many connections come in time depends on the machine
    Local("sessions.unread", 1),
    Local("sessions.queries", 2, (), False),
    Local("sessions.churn", 2),
    Local("sessions.garbage", 2, ("PROTOCOL",)),
    Local("sessions.descriptors", 2, ("PROTOCOL", "LIMIT"), False),
    Local("sessions.rings_scribbled", 2),
    Local("sessions.doorbells", 2, (), False),
    Local("sessions.rings_full_of_requests", 2),
    Local("sessions.half_an_entry", 2),
    Local("operations.lists", 4, ("NOT_FOUND", "LIMIT")),
    Local("operations.receives", 8),
    Local("operations.messages", 2, (), False),
    Local("operations.inits", 1, (), True, True),
    Local("operations.init_churn", 2, (), False),
    Local("operations.forms", 4, (), False),
    Local("operations.layouts", 4, ("LIMIT",), False),
    Local("operations.records", 1),
    Local("operations.barriers", 2, ("LIMIT",), False),
    Local("operations.one_sided", 1, (), False),
    Local("operations.one_sided_reduces", 1, ("LIMIT",), False),
    Local("operations.foreign_ids", 1, ("NOT_FOUND",)),
    Local("operations.stopped", 2, (), False),
    Local("operations.half_read", 1, (), False),
    Local("operations.thousand_ranks", 1, (), False),
    Local("operations.blocks", 1, (), False),
    Local("operations.blocks_across", 1, (), False),
    Local("operations.sums_across", 1, (), False),
    Local("operations.bulk", 1, (), False),
    Local("operations.contradictions", 1, ("MISMATCH",), False),
    Local("operations.names", 1, ("INVALID_ARGUMENT",), log_forbids="^[^\\n]{0,40}FORGED"),
    Local("memory.sparse", 1, ("INVALID_ARGUMENT",), limited=True),
    Local("memory.punched", 1, ("INVALID_ARGUMENT",), limited=True),
    Local("memory.punched_meanwhile", 1, (), False),
    Local("memory.churn", 1, (), False),
    Local("memory.many", 2, (), False),
    Local("memory.not_sealed", 1, ("INVALID_ARGUMENT",)),
    Local("memory.punched_slowly", 5, (), False),
    Local("descriptors.strange", 1, ("INVALID_ARGUMENT",), forbids=("MEMORY THAT IS NONE",)),
    Local("descriptors.sealed_later", 1, (), False),
    Local("descriptors.huge", 1, (), False),
    Local("descriptors.addresses", 1, ("LIMIT",), False),
    Local("descriptors.same", 1, (), False),
    Local("descriptors.left_in_packets", 2),
    Local("descriptors.bells", 2),
    Local("descriptors.handed_out", 1, forbids=("THE HEARTBEAT CAN BE WRITTEN",)),
    Local("others.squatting", 1),
    Local("others.listing", 1, forbids=("A ROW OF ANOTHER USER", "THE PATH OF A KEY")),
    Local("others.forked", 1, ("RANK_LOST",)),
    Local("others.stolen", 1, ("PROTOCOL",)),
    Local("others.split_storm", 2, (), False),
    Local("others.commctl_storm", 2, (), False),
    Local("others.with_rings", 2, ("LIMIT",), False),
    Local("others.everything", 8),
]

NODE = [
    Node("data_magic", "reduce", "malformed: magic", True),
    Node("data_version", "reduce", "malformed: version"),
    Node("data_kind", "reduce", "malformed: kind"),
    Node("data_dtype", "reduce", "malformed: dtype"),
    Node("data_reduce", "reduce", "malformed: reduce"),
    Node("data_payload_giant", "reduce", "malformed: payload_bytes"),
    Node("data_comm", "reduce", "TIMED_OUT"),
    Node("data_seq", "reduce", "TIMED_OUT"),
    Node("data_round", "reduce", "TIMED_OUT"),
    Node("data_slice", "reduce", "PROTOCOL"),
    Node("data_payload_more", "reduce", "PROTOCOL"),
    Node("data_payload_less", "reduce", "PROTOCOL"),
    Node("data_count", "reduce", "MISMATCH"),
    Node("data_algorithm", "reduce", "MISMATCH"),
    Node("data_hash", "reduce", "MISMATCH"),
    Node("data_zero", "reduce", "malformed: reserved"),
    Node("data_layouts", "reduce", "malformed: has_layouts"),
    Node("data_bucket", "reduce", "malformed: bucket_index"),
    Node("message_magic", "messages", "malformed: magic", True),
    Node("message_kind", "messages", "malformed: kind"),
    Node("message_giant", "messages", "malformed: payload_bytes"),
    Node("message_zero", "messages", "malformed: reserved"),
    Node("message_comm", "messages", "TIMED_OUT"),
    Node("message_id", "messages", "message that was not sent|message out of order"),
    Node("message_source", "messages", "ranks that are elsewhere|another size"),
    Node("message_to", "messages", "ranks that are elsewhere"),
    Node("second_stream", "reduce", "second stream", True),
    Node("control_length", "reduce", "0 bytes or more than the maximum", True),
    Node("control_zero", "reduce", "0 bytes or more than the maximum"),
    Node("control_garbage", "reduce", "cannot be understood"),
    Node("second_control", "reduce", "second control stream"),
    Node("hello_again", "reduce", ""),
    Node("echo_flood", "reduce", "", True),
    Node("announce_flood", "reduce", "", True),
    Node("stream_flood", "reduce", "beginnings of too many headers", True),
    Node("stream_holes", "reduce", "left out the beginning", True),
    Node("stream_garbage", "reduce", "malformed"),
    Node("rapid_reset", "reduce", ""),
    Node("one_byte_frames", "reduce", ""),
    Node("no_window", "reduce", ""),
    Node("ack_unsent", "reduce", "held off.*never sent.*ERR_PROTO", True),
    Node("ack_range", "reduce", "held off.*ERR_ACK_FRAME"),
    Node("ack_never", "reduce", ""),
    Node("challenge_flood", "reduce", ""),
    Node("moving", "reduce", ""),
    Node("datagram_noise", "reduce", ""),
    Node("datagram_replay", "reduce", ""),
    Node("dispute_forming", "form", "", True),
    Node("verdict_false", "form", ""),
    Node("refuse_all", "form", ""),
    Node("refuse_all", "form", "", True, "ab"),
]

ALL = LOCAL + NODE
