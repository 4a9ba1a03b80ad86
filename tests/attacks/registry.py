"""The attacks: what each is to show, and how it is run."""
import collections

# name: module.function; processes: at once, of one user; expects: what the attacker is told (one of these; none: nothing needs to be refused);
# quick: `make test` runs it for QUICK_S; freeze: node b stands still meanwhile for 1.5 s.
Local = collections.namedtuple("Local", "name processes expects quick freeze", defaults=((), True, False))

QUICK_S = 1.5
FULL_S = 5

LOCAL = [
    Local("sessions.without_hello", 1, ("LIMIT", "TIMED_OUT"), False),
    Local("sessions.with_hello", 1, ("LIMIT",)),
    Local("sessions.unread", 1, ("LIMIT",), False),
    Local("sessions.queries", 2),
    Local("sessions.churn", 2),
    Local("sessions.garbage", 2, ("PROTOCOL",)),
    Local("sessions.descriptors", 2, ("PROTOCOL", "LIMIT")),
    Local("sessions.rings_scribbled", 2),
    Local("sessions.doorbells", 2),
    Local("sessions.rings_full_of_requests", 2),
    Local("operations.lists", 4, ("NOT_FOUND", "LIMIT"), False),
    Local("operations.receives", 8, ("LIMIT",)),
    Local("operations.messages", 2, ("LIMIT",)),
    Local("operations.inits", 1, ("LIMIT",), False, True),
    Local("operations.init_churn", 2),
    Local("operations.forms", 4, ("LIMIT",), False),
    Local("operations.layouts", 4, ("LIMIT",), False),
    Local("operations.records", 1, ("LIMIT",), False),
    Local("operations.barriers", 2, ("LIMIT",)),
    Local("operations.foreign_ids", 1, ("NOT_FOUND",)),
    Local("operations.stopped", 2),
]
