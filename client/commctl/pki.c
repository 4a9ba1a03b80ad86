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
    fputs(
        "usage: commctl pki init [--dir DIR] [--days N]       make the cluster's authority\n"
        "       commctl pki request NAME [--dir DIR]          on a node: make its key and a request\n"
        "       commctl pki issue NAME [--request FILE] [--dir DIR] [--days N]\n"
        "                                                     certify a request; without one, make the key, "
        "too\n"
        "       commctl pki renew NAME [--new-key | --request FILE] [--dir DIR] [--days N]\n"
        "                                                     a new certificate, by default for the same "
        "key\n"
        "       commctl pki revoke NAME|SERIAL|FILE [--dir DIR]\n"
        "                                                     write the revocation list anew, with these on "
        "it\n"
        "       commctl pki show [NAME|FILE] [--dir DIR]      what was issued; what is in a file\n"
        "Files are DIR/ca.crt, ca.key, ca.crl, issued.txt, NAME.crt, NAME.key, NAME.csr; DIR is . by "
        "default. "
        "NAME is a node's\n"
        "name: letters, digits and hyphens, at most 63, not \"ca\".\n",
        stderr);
    return EXIT_CODE_USAGE;
}

static bool subject_is_right(const struct pki_command *command, const char *name)
{
    switch (command->subject) {
    case PKI_NOBODY:
        return name == NULL;
    case PKI_NODE:
        return name != NULL && pki_name_is_valid(name);
    case PKI_ANYTHING:
        return name != NULL;
    case PKI_ANYTHING_OR_NOBODY:
        return true;
    }
    return false;
}

static bool pki_parse(struct pki *pki, const struct pki_command *command, int argc, char **argv)
{
    for (int i = 2; i < argc; i++) {
        char *end = NULL;
        if (strcmp(argv[i], "--dir") == 0 && i + 1 < argc) {
            pki->folder = argv[++i];
        } else if (strcmp(argv[i], "--request") == 0 && i + 1 < argc && command->takes_request) {
            pki->request_path = argv[++i];
        } else if (strcmp(argv[i], "--new-key") == 0 && command->takes_new_key) {
            pki->new_key = true;
        } else if (strcmp(argv[i], "--days") == 0 && i + 1 < argc && command->takes_days) {
            pki->days = strtol(argv[++i], &end, 10);
            if (*end != '\0' || pki->days == 0 || pki->days > 36500 || pki->days < -36500) {
                return false;
            }
        } else if (pki->name == NULL && argv[i][0] != '-' && argv[i][0] != '\0') {
            pki->name = argv[i];
        } else {
            return false;
        }
    }
    return subject_is_right(command, pki->name) && !(pki->new_key && pki->request_path != NULL) &&
           strlen(pki->folder) + NODE_NAME_MAX_BYTES + 8 < sizeof pki->path;
}

enum exit_code verb_pki(struct commctl *commctl, int argc, char **argv)
{
    struct pki pki = {.commctl = commctl, .folder = ".", .now_s = time(NULL)};
    for (size_t i = 0; argc >= 2 && i < sizeof pki_commands / sizeof pki_commands[0]; i++) {
        const struct pki_command *command = &pki_commands[i];
        if (strcmp(argv[1], command->name) == 0) {
            return pki_parse(&pki, command, argc, argv) ? command->run(&pki) : pki_usage();
        }
    }
    return pki_usage();
}
