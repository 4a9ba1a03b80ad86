#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/commctl/pki.h"

#define DAEMON_USER "commd"

static const char *owner_name(const struct pki *pki)
{
    return pki->owner_name != NULL ? pki->owner_name : DAEMON_USER;
}

bool pki_owner_find(const struct pki *pki, struct pki_owner *storage, const struct pki_owner **out)
{
    *out = NULL;
    const struct passwd *user = getpwnam(owner_name(pki));
    if (user == NULL && pki->owner_name != NULL) {
        fprintf(stderr, "commctl pki: --owner %s: no such user\n", pki->owner_name);
        return false;
    }
    if (user != NULL && (pki->owner_name != NULL || geteuid() == 0)) {
        *storage = (struct pki_owner){.uid = user->pw_uid, .gid = user->pw_gid};
        *out = storage;
    }
    return true;
}

/* A folder that is there keeps its mode. Root's umask must not close a new one to commd. */
bool pki_make_node_folder(const char *folder)
{
    if (mkdir(folder, 0755) < 0) {
        if (errno != EEXIST) {
            fprintf(stderr, "commctl pki: %s: %s\n", folder, strerror(errno));
        }
        return errno == EEXIST;
    }
    int fd = geteuid() == 0 ? open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    if (fd >= 0) {
        (void)fchmod(fd, 0755); /* if it fails, pki_owner_advise() says so */
        close(fd);
    }
    return true;
}

static bool may_enter(const struct pki_owner *owner, const struct stat *folder)
{
    if (folder->st_uid == owner->uid) {
        return (folder->st_mode & S_IXUSR) != 0;
    }
    return (folder->st_mode & (folder->st_gid == owner->gid ? S_IXGRP : S_IXOTH)) != 0;
}

void pki_owner_advise(const struct pki *pki, const struct pki_owner *owner, const char *key_path)
{
    struct stat folder;
    const struct passwd *user = getpwnam(owner_name(pki));
    if (owner != NULL) {
        printf("%s belongs to %s, who alone may read it\n", key_path, owner_name(pki));
    } else if (user == NULL) {
        printf("there is no user %s; when there is, as root: chown %s %s\n", owner_name(pki), owner_name(pki),
               key_path);
    } else if (user->pw_uid != geteuid()) {
        printf("commd's user must be able to read the key; as root: chown %s %s\n", owner_name(pki),
               key_path);
    }
    if (owner != NULL && stat(pki->folder, &folder) == 0 && !may_enter(owner, &folder)) {
        printf("%s cannot enter the folder; as root: chmod 755 %s\n", owner_name(pki), pki->folder);
    }
}
