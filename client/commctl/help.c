#include <stddef.h>
#include <string.h>

#include "client/commctl/run.h"

/* The options of each verb, for `commctl VERB --help`. usage.c makes the usages from these lines. A test
 * checks that every option is here. */

static const struct {
    const char *verb, *text;
} options_of[] = {
    {"abort", "  -u, --uid USER      whose communicator: a number or a name; for administrators\n"
              "  -r, --reason TEXT   what its ranks are told\n"},
    {"disconnect", "  -r, --reason TEXT   what the process and its communicators' ranks are told\n"},
    {"nodes", "  --down              only nodes that need attention: not up, or with other settings\n"
              "  --summary           how many nodes are in each state\n"},
    {"gpus", "  --tuning            how long operations among GPUs took with and without NCCL\n"},
    {"drain",
     "  -T, --timeout S     after so many seconds, end what still runs (default: it may go on)\n"
     "  -r, --reason TEXT   what refused and ended ranks are told, on all nodes\n"
     "\n"
     "New communicators are refused, on this node and for ranks of other nodes that need this one. The\n"
     "call returns at once; 'commctl wait idle' waits for the end of what runs.\n"},
    {"wait", "  nodes               until every configured node is up\n"
             "  idle                until no communicator is left on this node\n"
             "  -T, --timeout S     then exit with 124 (default 60)\n"},
    {"run", run_usage},
    {"ping", "  -n COUNT            how often (default 3)\n"},
    {"algorithms", "  -s SIZE[,SIZE...]   sizes of whole operations, like 64k\n"
                   "  -n NODES|NAME,...   that many nodes, or these\n"
                   "  -a OVERRIDES        as in commd.conf(5)\n"},
    {"plan", "  -n NODES            1 to 16384 (default 16)\n"
             "  -s SIZE[,SIZE...]   sizes of whole operations, like 64k\n"
             "  -l MICROSECONDS     latency of a link (default 50)\n"
             "  -b GBIT_PER_S       bandwidth of a link (default 10)\n"
             "  -c, --slice SIZE    unit of pipelining\n"
             "  -a OVERRIDES        as in commd.conf(5)\n"
             "  -o, --svg FILE      a plot\n"},
    {"bench", "  --ranks N              processes on this node (default 2)\n"
              "  --operation NAME,...   all, or some of all_reduce (default), all_gather, reduce_scatter,\n"
              "                         all_to_all, broadcast, reduce, send_recv, barrier\n"
              "  --min-bytes SIZE       smallest size (default 8)\n"
              "  --max-bytes SIZE       largest size (default 256m)\n"
              "  --step-factor N        from size to size (default 2)\n"
              "  --dtype TYPE           default f32\n"
              "  --reduce sum|min|max   default sum\n"
              "  --root RANK            default 0\n"
              "  --seconds-per-size S   default 0.2, at most 3600; at least 3 iterations\n"
              "  --iterations N         in place of seconds, at most 1000000000\n"
              "  --in-place             only in place\n"
              "  --out-of-place         only out of place\n"
              "  --unregistered         buffers that commd does not know\n"
              "  --no-check             do not check the results\n"
              "  --size RANKS           on several nodes: ranks in all\n"
              "  --first-rank RANK      on several nodes: the first rank of this node\n"
              "  --communicator NAME    its name, the same on all nodes\n"
              "  -f, --format text|json\n"},
    {"trace", "  -s, --seconds S     how far back, more than 0 and at most 3600 (default 5)\n"
              "  -o, --output FILE   default: standard output\n"
              "  FILE...             drawn beside it: of programs, or of other nodes\n"},
    {"config", "  show                settings in force, and where each comes from\n"
               "  check [FILE]        check a file (default /etc/commd/commd.conf)\n"},
    {"pki",
     "  init                              make the cluster's authority\n"
     "  admit                             certify nodes that join, here where the authority is\n"
     "  join AUTHORITY[:PORT] [NAME]      on a new node: get its certificate from 'admit'\n"
     "  request NAME                      make a node's key and request\n"
     "  issue NAME                        make a node's certificate\n"
     "  renew NAME                        make it again: the same key, or another\n"
     "  revoke NAME | SERIAL | FILE       exclude a certificate\n"
     "  show [NAME | FILE]                what the files say\n"
     "  --dir DIR                         where the files are (default: the current folder; of join:\n"
     "                                    /etc/commd/pki)\n"
     "  --days N                          of init, admit, issue, renew: how long it is valid\n"
     "  --request FILE                    of issue, renew: the node's request\n"
     "  --new-key                         of renew: make another key, too\n"
     "  --owner USER                      of join, request: whose the key is (default commd, as root)\n"
     "  --listen ADDRESS[:PORT]           of admit (default: all addresses, TCP port 7399)\n"
     "  --once                            of admit: end after one node\n"
     "  --count N                         of admit: end after N nodes\n"
     "  --renew                           of admit: also certify a name that is taken\n"
     "  --yes-code CODE|@FILE             of admit: the code agreed in advance\n"
     "  --code CODE|@FILE                 of join: the code agreed in advance\n"},
    {"top", "  -d, --interval SECONDS   between looks, 0.1 to 3600 (default 1)\n"
            "  -n, --count COUNT        as text, so many looks\n"
            "  --table communicators|operations|links|processes\n"
            "                           which one first\n"
            "  --text                   no screen, though this is a terminal\n"},
    {"health", "  CHECK               one check alone; 'commctl health' shows their names\n"},
    {"events", "  --follow            wait for more, until interrupted\n"
               "  --after SEQUENCE    only later events\n"},
    {"metrics", "  --open-metrics      in the format of OpenMetrics 1.0 (default: Prometheus 0.0.4)\n"},
};

const char *help_options(const char *verb)
{
    for (size_t i = 0; i < sizeof options_of / sizeof options_of[0]; i++) {
        if (strcmp(options_of[i].verb, verb) == 0) {
            return options_of[i].text;
        }
    }
    return "";
}
