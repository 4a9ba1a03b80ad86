#include "client/commctl/pki.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum pki_subject { PKI_NOBODY, PKI_NODE, PKI_ANYTHING, PKI_ANYTHING_OR_NOBODY };

struct pki_command {
    const char *name;
    enum exit_code (*run)(struct pki *pki);
    enum pki_subject subject;
    bool takes_request, takes_days, takes_new_key;
};

static const struct pki_command pki_commands[] = {
    {"init", pki_init, PKI_NOBODY, false, true, false},
    {"request", pki_request, PKI_NODE, false, false, false},
    {"issue", pki_issue, PKI_NODE, true, true, false},
    {"renew", pki_renew, PKI_NODE, true, true, true},
    {"revoke", pki_revoke, PKI_ANYTHING, false, false, false},
    {"show", pki_show, PKI_ANYTHING_OR_NOBODY, false, false, false},
};

static enum exit_code pki_usage(void)
{
    fputs("usage: commctl pki init [--dir DIR] [--days N]       make the cluster's authority\n"
          "       commctl pki request NAME [--dir DIR]          on a node: make its key and a request\n"
          "       commctl pki issue NAME [--request FILE] [--dir DIR] [--days N]\n"
          "                                                     certify a request; without one, make the key "
          "too\n"
          "       commctl pki renew NAME [--new-key | --request FILE] [--dir DIR] [--days N]\n"
          "                                                     a new certificate, by default for the same "
          "key\n"
          "       commctl pki revoke NAME|SERIAL|FILE [--dir DIR]\n"
          "                                                     write a new revocation list that has these "
          "too\n"
          "       commctl pki show [NAME|FILE] [--dir DIR]      show what was issued, or what is in a file\n"
          "Files are DIR/ca.crt, ca.key, ca.crl, issued.txt, NAME.crt, NAME.key, NAME.csr; DIR is . by "
          "default. "
          "NAME is a node's\n"
          "name: letters, digits and hyphens, at most 63, not \"ca\".\n",
          stderr);
    return EXIT_CODE_USAGE;
}

/* Null when it is right, else what was expected. */
static const char *expected_subject(const struct pki_command *command, const char *name)
{
    switch (command->subject) {
    case PKI_NOBODY:
        return name == NULL ? NULL : "only options";
    case PKI_NODE:
        return name != NULL && pki_name_is_valid(name)
                   ? NULL
                   : "a node's name: letters, digits and hyphens, at most 63, not \"ca\"";
    case PKI_ANYTHING:
        return name != NULL ? NULL : "a node's name, a serial number or a file";
    case PKI_ANYTHING_OR_NOBODY:
        return NULL;
    }
    return NULL;
}

static enum exit_code pki_wrong(const struct pki_command *command, const char *what, const char *given,
                                const char *expected)
{
    char verb[32];
    (void)snprintf(verb, sizeof verb, "pki %s", command->name);
    (void)usage_wrong(verb, what, given, expected, "");
    return pki_usage();
}

static enum exit_code pki_parse(struct pki *pki, const struct pki_command *command, int argc, char **argv)
{
    for (int i = 2; i < argc; i++) {
        char *end;
        if (strcmp(argv[i], "--dir") == 0 && i + 1 < argc) {
            pki->folder = argv[++i];
        } else if (strcmp(argv[i], "--request") == 0 && i + 1 < argc && command->takes_request) {
            pki->request_path = argv[++i];
        } else if (strcmp(argv[i], "--new-key") == 0 && command->takes_new_key) {
            pki->new_key = true;
        } else if (strcmp(argv[i], "--days") == 0 && i + 1 < argc && command->takes_days) {
            pki->days = strtol(argv[++i], &end, 10);
            if (*end != '\0' || pki->days == 0 || pki->days > 36500 || pki->days < -36500) {
                return pki_wrong(command, "--days", argv[i], "days, 1 to 36500, or -36500 to -1");
            }
        } else if (argv[i][0] == '-' && i + 1 == argc) {
            return pki_wrong(command, argv[i], NULL, "an option of this command, with its argument");
        } else if (pki->name != NULL || argv[i][0] == '-' || argv[i][0] == '\0') {
            return pki_wrong(command, argv[i], NULL, "one name at most, and options of this command");
        } else {
            pki->name = argv[i];
        }
    }
    const char *expected = expected_subject(command, pki->name);
    if (expected != NULL) {
        return pki_wrong(command, pki->name != NULL ? pki->name : "nothing", NULL, expected);
    }
    if (pki->new_key && pki->request_path != NULL) {
        return pki_wrong(command, "--new-key and --request", NULL, "one of them, or none");
    }
    if (strlen(pki->folder) + NODE_NAME_MAX_BYTES + 8 >= sizeof pki->path) {
        return pki_wrong(command, "--dir", pki->folder, "a shorter path");
    }
    return EXIT_CODE_OK;
}

enum exit_code verb_pki(struct commctl *commctl, int argc, char **argv)
{
    struct pki pki = {.commctl = commctl, .folder = ".", .now_s = time(NULL)};
    for (size_t i = 0; argc >= 2 && i < sizeof pki_commands / sizeof pki_commands[0]; i++) {
        const struct pki_command *command = &pki_commands[i];
        if (strcmp(argv[1], command->name) == 0) {
            enum exit_code code = pki_parse(&pki, command, argc, argv);
            return code == EXIT_CODE_OK ? command->run(&pki) : code;
        }
    }
    (void)usage_wrong("pki", argc >= 2 ? argv[1] : "nothing", NULL,
                      "init, request, issue, renew, revoke or show", "");
    return pki_usage();
}
